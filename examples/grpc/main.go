// Grpc makes unary and streaming gRPC calls over a fabric. Its service is the
// echo service that grpc-go uses for benchmarks; yours works the same way.
//
// In one command, as two processes:
//
//	go run ./examples/grpc
//
// In two terminals, or on two hosts of one fabric:
//
//	go run ./examples/grpc -serve :8080
//	go run ./examples/grpc -call rdma://localhost:8080
//
// RDMANET_PROVIDERS='tcp;ofi_rxm' in the environment chooses the provider.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"

	"github.com/seed202c38ff/fabricnet/grpcdialer"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func main() {
	log.SetFlags(0)
	address := flag.String("serve", "", "serve on this `address`, such as :8080")
	target := flag.String("call", "", "call the server at this `target`, such as rdma://localhost:8080")
	flag.Parse()

	var err error
	switch {
	case *address != "":
		err = serve(*address)
	case *target != "":
		err = call(*target)
	default:
		err = both()
	}
	if err != nil {
		log.Fatal(err)
	}
}

// echo is the service: it answers with the payload that it was sent.
type echo struct {
	pb.UnimplementedBenchmarkServiceServer
}

func (echo) UnaryCall(_ context.Context, in *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	return &pb.SimpleResponse{Payload: in.GetPayload()}, nil
}

func (echo) StreamingCall(s grpc.BidiStreamingServer[pb.SimpleRequest, pb.SimpleResponse]) error {
	for {
		in, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(&pb.SimpleResponse{Payload: in.GetPayload()}); err != nil {
			return err
		}
	}
}

// newServer returns a gRPC server like any other. The options are optional.
func newServer() *grpc.Server {
	s := grpc.NewServer(grpcdialer.TuningServerOptions()...)
	pb.RegisterBenchmarkServiceServer(s, echo{})
	return s
}

// serve differs from a server over TCP only in its listener.
func serve(address string) error {
	l, err := grpcdialer.Listen(address)
	if err != nil {
		return err
	}
	fmt.Println("serving on", l.Addr())
	return newServer().Serve(l)
}

// call makes a unary call and holds a conversation on a stream. Its client differs from one over
// TCP only in DialOption; WithResolver adds rdma:// targets.
func call(target string) (err error) {
	conn, err := grpc.NewClient(target, append(grpcdialer.TuningDialOptions(),
		grpcdialer.DialOption(nil),
		grpcdialer.WithResolver(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	client := pb.NewBenchmarkServiceClient(conn)

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := unary(ctx, client); err != nil {
		return err
	}
	return converse(ctx, client)
}

func unary(ctx context.Context, client pb.BenchmarkServiceClient) error {
	var server peer.Peer
	answer, err := client.UnaryCall(ctx, request("hello"), grpc.Peer(&server))
	if err != nil {
		return err
	}
	network := "TCP"
	if info, ok := rdmanet.InfoOf(server.Addr); ok {
		network = "rdma, provider " + info.Provider
	}
	fmt.Printf("unary: %q from %s over %s\n", answer.GetPayload().GetBody(), server.Addr, network)
	return nil
}

// converse sends words one by one and prints the answer to each.
func converse(ctx context.Context, client pb.BenchmarkServiceClient) error {
	stream, err := client.StreamingCall(ctx)
	if err != nil {
		return err
	}
	for _, word := range []string{"one", "two", "three"} {
		if err := stream.Send(request(word)); err != nil {
			return err
		}
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		fmt.Printf("stream: %q\n", answer.GetPayload().GetBody())
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("want the end of the stream, got %w", err)
	}
	return nil
}

func request(text string) *pb.SimpleRequest {
	return &pb.SimpleRequest{Payload: &pb.Payload{Body: []byte(text)}}
}

// both serves in this process and calls from another.
func both() error {
	l, err := grpcdialer.Listen("127.0.0.1:0")
	if err != nil {
		return err
	}
	server := newServer()
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	if err := runClient(l.Addr()); err != nil {
		return fmt.Errorf("client: %w", err)
	}
	server.GracefulStop()
	return <-served
}

func runClient(server net.Addr) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	client := exec.Command(self, "-call", "rdma://"+server.String())
	client.Stdout, client.Stderr = os.Stdout, os.Stderr
	return client.Run()
}
