// Package grpcdialer runs gRPC over RDMA fabrics: it gives gRPC clients the
// conns of package rdmanet, and gRPC servers its listeners.
//
// A client needs one dial option; its targets stay what they were:
//
//	conn, err := grpc.NewClient("storage7:8080",
//		grpcdialer.DialOption(nil),
//		grpc.WithTransportCredentials(creds))
//
// A server needs another listener:
//
//	l, err := grpcdialer.Listen(":8080")
//	...
//	err = server.Serve(l)
//
// Targets such as "rdma://storage7:8080" work with [WithResolver] added. They
// leave the resolution of the name to rdmanet's Dialer, which tries all of
// the host's addresses for each conn, whereas gRPC's dns resolver, its default,
// resolves the name once and balances over the addresses.
//
// The options of [TuningDialOptions] and [TuningServerOptions] suit gRPC's
// buffers to a fabric. They are optional.
//
// Bytes on a fabric are clear text: use TLS credentials where that matters, as
// over TCP. The credentials/local package of gRPC recognises TCP loopback and
// Unix sockets only, and refuses these conns.
package grpcdialer
