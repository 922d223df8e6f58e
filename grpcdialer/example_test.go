package grpcdialer_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	"github.com/seed202c38ff/fabricnet/grpcdialer"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// A gRPC server needs another listener, and a client one more dial option.
func Example() {
	l, err := grpcdialer.Listen("127.0.0.1:0") // was net.Listen("tcp", ...)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(l) }() // until Stop
	defer server.Stop()

	conn, err := grpc.NewClient(l.Addr().String(),
		grpcdialer.DialOption(nil), // the new line
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	var from peer.Peer
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(context.Background(),
		&grpc_health_v1.HealthCheckRequest{}, grpc.Peer(&from))
	if err != nil {
		log.Fatal(err)
	}
	_, fabric := rdmanet.InfoOf(from.Addr)
	fmt.Println(answer.GetStatus(), "over a fabric:", fabric)
	// Output: SERVING over a fabric: true
}

// healthServer serves gRPC's health service on l until stop is called.
func healthServer(l net.Listener, options ...grpc.ServerOption) (stop func()) {
	server := grpc.NewServer(options...)
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(l) }()
	return server.Stop
}

// check asks a server for its health.
func check(target string, options ...grpc.DialOption) {
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.GetStatus())
}

// The Dialer's options apply to the client's conns.
func ExampleDialOption() {
	l, err := grpcdialer.Listen("127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer healthServer(l)()

	dialer := &rdmanet.Dialer{
		Timeout:   10 * time.Second, // for each attempt
		Transport: &rdmanet.Transport{MemoryLimit: 64 << 20},
	}
	check(l.Addr().String(), grpcdialer.DialOption(dialer))
	// Output: SERVING
}

// ContextDialer is for clients that want to see the conn, or to wrap it.
func ExampleContextDialer() {
	l, err := grpcdialer.Listen("127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer healthServer(l)()

	dial := grpcdialer.ContextDialer(nil)
	check(l.Addr().String(), grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		c, err := dial(ctx, address)
		if err == nil {
			info := c.(*rdmanet.Conn).Info()
			fmt.Println("provider known:", info.Provider != "", "fallback:", info.Fallback)
		}
		return c, err
	}))
	// Output:
	// provider known: true fallback: <nil>
	// SERVING
}

// One port serves a gRPC client over plain TCP and one over a fabric.
func ExampleListen() {
	// grpcdialer.Listen has no options: use rdmanet's ListenConfig for that.
	config := rdmanet.ListenConfig{AcceptTCP: true}
	l, err := config.Listen(context.Background(), "rdma", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer healthServer(l)()

	check(l.Addr().String())
	check(l.Addr().String(), grpcdialer.DialOption(nil))
	// Output:
	// SERVING
	// SERVING
}

// With the resolver, a target itself says that it is reached over a fabric.
func ExampleWithResolver() {
	l, err := grpcdialer.Listen("127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer healthServer(l)()

	check("rdma://"+l.Addr().String(), grpcdialer.DialOption(nil), grpcdialer.WithResolver())
	// Output: SERVING
}

// Put the tuning options first, so that your own override them.
func ExampleTuningDialOptions() {
	l, err := grpcdialer.Listen("127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer healthServer(l, grpcdialer.TuningServerOptions()...)()

	options := append(grpcdialer.TuningDialOptions(),
		grpcdialer.DialOption(nil),
		grpc.WithReadBufferSize(16<<10)) // bytes, instead of the tuning's value
	check(l.Addr().String(), options...)
	// Output: SERVING
}

// With the tuning options, a server's conns may hold 32 MiB each if they are not read. Smaller
// windows go after them, so that they win.
func ExampleTuningServerOptions() {
	l, err := grpcdialer.Listen("127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	options := append(grpcdialer.TuningServerOptions(), grpc.InitialConnWindowSize(4<<20)) // bytes
	defer healthServer(l, options...)()

	check(l.Addr().String(), grpcdialer.DialOption(nil))
	// Output: SERVING
}
