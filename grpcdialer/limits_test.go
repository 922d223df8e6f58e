package grpcdialer_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// A message that is too large ends its call, but not the conn.
func TestTooLargeMessages(t *testing.T) {
	const limit = 64 << 10
	onEach(t, func(t *testing.T, l net.Listener, d *rdmanet.Dialer) {
		serve(t, l, grpc.MaxRecvMsgSize(4*limit))
		c := client(t, "rdma://"+l.Addr().String(), d)
		var first, p peer.Peer
		_, err := c.UnaryCall(callContext(t), request(1), grpc.Peer(&first))
		require.NoError(t, err)
		for _, tt := range []struct {
			name string
			size int
			opts []grpc.CallOption
			want codes.Code
		}{
			{"the server's limit", 4*limit + 1, nil, codes.ResourceExhausted},
			{"the client's limit", limit + 1, []grpc.CallOption{grpc.MaxCallRecvMsgSize(limit)}, codes.ResourceExhausted},
			{"the client's own", limit + 1, []grpc.CallOption{grpc.MaxCallSendMsgSize(limit)}, codes.ResourceExhausted},
			{"none", limit + 1, nil, codes.OK},
		} {
			_, err := c.UnaryCall(callContext(t), request(tt.size), append(tt.opts, grpc.Peer(&p))...)
			assert.Equal(t, tt.want, status.Code(err), tt.name)
		}
		assert.Equal(t, whose(t, &first).ID, whose(t, &p).ID, "still the same conn")
	})
}

// Compressed messages take fewer bytes on the fabric, and arrive unchanged.
func TestGzip(t *testing.T) {
	onEach(t, func(t *testing.T, l net.Listener, d *rdmanet.Dialer) {
		serve(t, l)
		c := client(t, "rdma://"+l.Addr().String(), d)
		zeros := &grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: make([]byte, 1<<20)}}
		sent := func(opts ...grpc.CallOption) uint64 {
			var p peer.Peer
			_, err := c.UnaryCall(callContext(t), request(0), grpc.Peer(&p))
			require.NoError(t, err)
			before := whose(t, &p)
			got, err := c.UnaryCall(callContext(t), zeros, append(opts, grpc.Peer(&p))...)
			require.NoError(t, err)
			assert.Equal(t, zeros.GetPayload().GetBody(), got.GetPayload().GetBody())
			after := whose(t, &p)
			assert.Equal(t, before.ID, after.ID)
			return after.SmallSent + after.LargeSent - before.SmallSent - before.LargeSent
		}
		assert.Greater(t, sent(), uint64(1<<20))
		assert.Less(t, sent(grpc.UseCompressor(gzip.Name)), uint64(64<<10))
	})
}
