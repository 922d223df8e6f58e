// Package interop has only tests: gRPC-Go's own interop cases and benchmarks, run
// over fabrics. It is a separate module because of what those depend on.
//
// Every case of google.golang.org/grpc/interop runs over each provider, in clear text
// and with TLS credentials, with the server in another process. The exceptions are
// the cases that need an account with a cloud provider, or have to run inside a cloud:
//
//   - DoComputeEngineCreds, DoComputeEngineChannelCredentials and
//     DoGoogleDefaultCredentials: the metadata server of Compute Engine.
//   - DoServiceAccountCreds, DoJWTTokenCreds, DoOauth2TokenCreds and DoPerRPCCreds: the
//     key of a service account, and an OAuth server that accepts it.
//
// gRPC-Go has none of the interop specification's cases with compressed messages;
// grpcdialer's own tests cover gzip.
//
// From google.golang.org/grpc/benchmark both types of the server run, and every kind
// of call, only to see that they work: measuring is left to this project's bench.
package interop
