package interop

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// authority answers with the :authority of the call.
type authority struct {
	testpb.UnimplementedTestServiceServer
}

func (authority) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	out := new(testpb.SimpleResponse)
	for _, name := range md[":authority"] {
		out.Username += name
	}
	return out, nil
}

// TestCallAuthority: each call can name its authority, whatever the target is. The core's
// tests of targets have all but this: grpc.CallAuthority is newer than the oldest gRPC-Go
// that the core works with.
func TestCallAuthority(t *testing.T) {
	l, err := rdmanet.Listen("rdma", testenv.Address())
	require.NoError(t, err)
	s := grpc.NewServer()
	testpb.RegisterTestServiceServer(s, authority{})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		assert.NoError(t, <-served)
	})
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	for _, target := range []string{
		"127.0.0.1:", "localhost:", "dns:///127.0.0.1:", "dns:///localhost:", "passthrough:///127.0.0.1:",
		"passthrough:///localhost:", "rdma://127.0.0.1:", "rdma://localhost:", "rdma:///127.0.0.1:", "rdma://:",
	} {
		t.Run(target, func(t *testing.T) {
			c := testpb.NewTestServiceClient(dial(t, target+port, options(t, "shm", false)...))
			got, err := c.UnaryCall(withPatience(t), new(testpb.SimpleRequest), grpc.CallAuthority("call.example"))
			require.NoError(t, err)
			assert.Equal(t, "call.example", got.GetUsername())
		})
	}
}
