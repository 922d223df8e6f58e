package load

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/interop/grpc_testing"

	"github.com/seed202c38ff/fabricnet/grpcdialer"
)

// gRPC runs over every transport as docs/tuning.md says.
func init() { experimental.SetDefaultBufferPool(grpcdialer.BufferPool()) }

// maxMessage is larger than the largest message, and than gRPC's default of 4 MiB.
const maxMessage = 64 << 20

// echoService answers with the payload that it was sent.
type echoService struct {
	grpc_testing.UnimplementedBenchmarkServiceServer
}

func (echoService) UnaryCall(_ context.Context, in *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	return &grpc_testing.SimpleResponse{Payload: in.GetPayload()}, nil
}

// serveCalls runs the same gRPC server over every transport until l is closed.
func serveCalls(l net.Listener) error {
	s := grpc.NewServer(append(grpcdialer.TuningServerOptions(), grpc.MaxRecvMsgSize(maxMessage))...)
	grpc_testing.RegisterBenchmarkServiceServer(s, echoService{})
	defer s.Stop()
	err := s.Serve(l)
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// openCalls returns a worker for each call that may be in flight.
func openCalls(ctx context.Context, j Job, dial dialer) ([]worker, func() error, error) {
	opts := append(grpcdialer.TuningDialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return dial() }))

	var conns []*grpc.ClientConn
	var workers []worker
	for range j.Conns {
		c, err := grpc.NewClient("passthrough:///server", opts...)
		if err != nil {
			return nil, nil, errors.Join(err, closeAll(conns))
		}
		conns = append(conns, c)
		for range j.Inflight {
			workers = append(workers, caller(ctx, grpc_testing.NewBenchmarkServiceClient(c), j.Size))
		}
	}
	return workers, func() error { return closeAll(conns) }, nil
}

func caller(ctx context.Context, client grpc_testing.BenchmarkServiceClient, size int) worker {
	request := &grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: make([]byte, size)}}
	return repeat(math.MaxInt, func() error {
		response, err := client.UnaryCall(ctx, request)
		if err != nil {
			return err
		}
		if n := len(response.GetPayload().GetBody()); n != size {
			return fmt.Errorf("the call returned %d of %d bytes", n, size)
		}
		return nil
	})
}
