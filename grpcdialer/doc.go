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
// # Which conn a call went over
//
// Handlers find it by the peer's address, with TLS credentials in between as well:
//
//	p, _ := peer.FromContext(ctx)
//	info, ok := rdmanet.InfoOf(p.Addr) // provider, paths, counters; !ok: plain TCP
//
// Clients give a call the option [grpc.Peer], and stats handlers have
// stats.ConnTagInfo.RemoteAddr. Conns between two processes share addresses:
// rdmanet's ConnInfo.ID tells them apart. gRPC's channelz shows the listeners'
// addresses, and those of conns over plain TCP; of other conns it shows none,
// whatever their network.
//
// # Security
//
// Bytes on a fabric are clear text: use TLS credentials where that matters, as
// over TCP. A server that refuses a client's certificate knows why; the client may
// be told of a broken pipe only, since a Write fails as soon as the peer has
// closed. The credentials/local package of gRPC looks at the text of addresses: it
// takes conns of loopback addresses, and refuses others even if they go through
// shared memory.
//
// What gRPC calls peer.AuthInfo comes from its own credentials, as over TCP. The TLS of
// the control connection (TLSConfig of rdmanet's Dialer and ListenConfig) neither fills it nor
// counts as transport security; ConnInfo.TLS has its state.
package grpcdialer
