// Package interop has tests only: gRPC-Go's own interop cases and benchmarks, run
// over fabrics. It is a module of its own because of what those depend on.
//
// Every case of google.golang.org/grpc/interop runs, in clear text and with TLS
// credentials, over each provider, with the server in another process; but for
// those that need an account at a cloud, or to run inside of it:
//
//   - DoComputeEngineCreds, DoComputeEngineChannelCredentials and
//     DoGoogleDefaultCredentials: the metadata server of Compute Engine.
//   - DoServiceAccountCreds, DoJWTTokenCreds, DoOauth2TokenCreds and DoPerRPCCreds: the
//     key of a service account, and an OAuth server that accepts it.
//
// gRPC-Go has none of the interop specification's cases of compressed messages;
// grpcdialer's own tests have gzip.
//
// Of google.golang.org/grpc/benchmark the server, in both of its types, and every
// kind of call run, to see that they work: this project's bench measures.
package interop
