package grpcdialer_test

import (
	"context"
	"fmt"
	"log"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	"github.com/seed202c38ff/fabricnet/grpcdialer"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// Both sides of a call find out which conn it goes over.
func Example_connInfo() {
	l, err := grpcdialer.Listen("127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if p, ok := peer.FromContext(ctx); ok {
				info, ok := rdmanet.InfoOf(p.Addr)
				fmt.Println("the call came over a fabric:", ok && info.Provider != "")
			}
			return handler(ctx, req)
		}))
	healthpb.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(l) }()
	defer server.Stop()

	conn, err := grpc.NewClient(l.Addr().String(), grpcdialer.DialOption(nil),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	var p peer.Peer
	_, err = healthpb.NewHealthClient(conn).Check(context.Background(), new(healthpb.HealthCheckRequest), grpc.Peer(&p))
	if err != nil {
		log.Fatal(err)
	}
	info, ok := rdmanet.InfoOf(p.Addr)
	fmt.Println("the answer did, too:", ok && info.SmallReceived > 0)
	// Output:
	// the call came over a fabric: true
	// the answer did, too: true
}
