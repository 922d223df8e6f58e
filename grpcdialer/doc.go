// Package grpcdialer runs gRPC over RDMA fabrics: it gives gRPC clients the
// conns of package rdmanet, and gRPC servers its listeners.
//
// A client needs one dial option; its targets stay the same:
//
//	conn, err := grpc.NewClient("storage7:8080",
//		grpcdialer.DialOption(nil),
//		grpc.WithTransportCredentials(creds))
//
// A server needs a different listener:
//
//	l, err := grpcdialer.Listen(":8080")
//	...
//	err = server.Serve(l)
//
// With [WithResolver] added, targets such as "rdma://storage7:8080" work too. They
// leave the resolution of the name to rdmanet's Dialer, which tries all of the
// host's addresses for each conn. gRPC's default, the dns resolver, resolves the
// name once and balances over the addresses.
//
// The options of [TuningDialOptions] and [TuningServerOptions] adapt gRPC's
// buffers to a fabric. They are optional.
//
// # Which conn a call went over
//
// Handlers find the conn by the peer's address, even with TLS credentials in between:
//
//	p, _ := peer.FromContext(ctx)
//	info, ok := rdmanet.InfoOf(p.Addr) // provider, paths, counters
//
// Clients give a call the option [grpc.Peer], and stats handlers have
// stats.ConnTagInfo.RemoteAddr.
//
// # Security
//
// Bytes on a fabric are clear text: use TLS credentials where that matters, as
// over TCP. A server that refuses a client's certificate knows why, but the client
// may only see a broken pipe, since a Write fails as soon as the peer has closed.
// gRPC's package credentials/local looks at the text of addresses: it accepts conns
// with loopback addresses, and refuses others even if they go through shared memory.
//
// What gRPC calls peer.AuthInfo comes from its own credentials, as over TCP. The TLS of
// the control connection (TLSConfig of rdmanet's Dialer and ListenConfig) neither fills
// it in nor counts as transport security; ConnInfo.TLS has the state of that TLS.
package grpcdialer
