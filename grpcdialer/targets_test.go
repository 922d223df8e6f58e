package grpcdialer_test

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/seed202c38ff/fabricnet/grpcdialer"
)

// authority answers with the :authority of the call.
type authority struct{ echo }

func (authority) UnaryCall(ctx context.Context, in *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	out := &grpc_testing.SimpleResponse{Payload: in.GetPayload()}
	for _, name := range md[":authority"] {
		out.Username += name
	}
	return out, nil
}

func TestTargetsAuthoritiesAndTheZeroDialer(t *testing.T) {
	l, err := grpcdialer.Listen("127.0.0.1:0")
	require.NoError(t, err)
	serveAs(t, l, authority{})
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	named := grpc.WithAuthority("storage.example")
	for _, tt := range []struct {
		target, authority string
		opts              []grpc.DialOption
	}{
		{target: "127.0.0.1:" + port, authority: "127.0.0.1:" + port},
		{target: "localhost:" + port, authority: "localhost:" + port},
		{target: "dns:///127.0.0.1:" + port, authority: "127.0.0.1:" + port},
		{target: "dns:///localhost:" + port, authority: "localhost:" + port},
		{target: "passthrough:///127.0.0.1:" + port, authority: "127.0.0.1:" + port},
		{target: "passthrough:///localhost:" + port, authority: "localhost:" + port},
		{target: "rdma://127.0.0.1:" + port, authority: "127.0.0.1:" + port},
		{target: "rdma://localhost:" + port, authority: "localhost:" + port},
		{target: "rdma:///127.0.0.1:" + port, authority: "127.0.0.1:" + port},
		{target: "rdma://:" + port, authority: "localhost:" + port},
		{target: "dns:///localhost:" + port, authority: "storage.example", opts: []grpc.DialOption{named}},
		{target: "rdma://127.0.0.1:" + port, authority: "storage.example", opts: []grpc.DialOption{named}},
	} {
		t.Run(tt.target+" as "+tt.authority, func(t *testing.T) {
			c := client(t, tt.target, nil, tt.opts...)
			got, err := c.UnaryCall(callContext(t), request(1))
			require.NoError(t, err)
			assert.Equal(t, tt.authority, got.GetUsername())
			testUnary(t, c, 1000)
		})
	}
}
