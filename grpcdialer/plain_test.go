package grpcdialer_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// whence is an echo that also says which network a call came over.
type whence struct{ echo }

func (whence) UnaryCall(ctx context.Context, in *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, status.Error(codes.Internal, "the call came from nowhere")
	}
	return &grpc_testing.SimpleResponse{Payload: in.GetPayload(), Username: networkOf(p.Addr)}, nil
}

// A client that knows nothing of this package can call the same server as fabric clients,
// on the same port.
func TestPlainClientsBesideFabricClients(t *testing.T) {
	for _, provider := range testenv.Providers() {
		t.Run(provider, func(t *testing.T) {
			only := []string{provider}
			transport := new(rdmanet.Transport)
			t.Cleanup(func() { assert.NoError(t, transport.Close()) })
			lc := rdmanet.ListenConfig{Providers: only, Transport: transport, AcceptTCP: true}
			l, err := lc.Listen(t.Context(), "rdma", testenv.Address())
			require.NoError(t, err)
			serveAs(t, l, whence{})

			plain, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, plain.Close()) })
			for network, c := range map[string]grpc_testing.BenchmarkServiceClient{
				"tcp":  grpc_testing.NewBenchmarkServiceClient(plain),
				"rdma": client(t, "rdma://"+l.Addr().String(), &rdmanet.Dialer{Providers: only, Transport: transport}),
			} {
				for _, size := range []int{0, 8 << 10, 3 << 20} {
					want := request(size)
					got, err := c.UnaryCall(callContext(t), want)
					require.NoError(t, err)
					assert.Equal(t, network, got.GetUsername())
					assert.True(t, bytes.Equal(want.GetPayload().GetBody(), got.GetPayload().GetBody()), "payloads differ")
				}
				testStreaming(t, c, 8<<10)
			}
		})
	}
}
