package grpcdialer_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestServerRestarts: a server's process is killed with a call in flight, and
// another takes its place at the same address. The client reaches the new one.
func TestServerRestarts(t *testing.T) {
	for _, provider := range testenv.Providers() {
		t.Run(provider, func(t *testing.T) {
			first := startServer(t, provider, testenv.Address())
			transport := new(rdmanet.Transport)
			t.Cleanup(func() { assert.NoError(t, transport.Close()) })
			cc := dial(t, "rdma://"+first.addr, &rdmanet.Dialer{Providers: []string{provider}, Transport: transport},
				grpc.WithConnectParams(grpc.ConnectParams{
					Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1, MaxDelay: 50 * time.Millisecond},
					MinConnectTimeout: patience,
				}))
			c := grpc_testing.NewBenchmarkServiceClient(cc)
			var before, after peer.Peer
			_, err := c.UnaryCall(callContext(t), request(8<<10), grpc.Peer(&before))
			require.NoError(t, err)
			inFlight, err := c.StreamingCall(callContext(t))
			require.NoError(t, err)
			require.NoError(t, inFlight.Send(request(1)))
			_, err = inFlight.Recv()
			require.NoError(t, err)

			first.kill(t)
			_, err = inFlight.Recv()
			assert.Equal(t, codes.Unavailable, status.Code(err), "the call that was in flight: %v", err)
			_, err = c.UnaryCall(callContext(t), request(1))
			assert.Equal(t, codes.Unavailable, status.Code(err), "while there is none: %v", err)

			second := startServer(t, provider, first.addr)
			assert.Equal(t, first.addr, second.addr)
			_, err = c.UnaryCall(callContext(t), request(8<<10), grpc.WaitForReady(true), grpc.Peer(&after))
			require.NoError(t, err)
			assert.Equal(t, before.Addr.String(), after.Addr.String())
			assert.NotEqual(t, whose(t, &before).ID, whose(t, &after).ID)
			testUnary(t, c, 64<<10)
			assert.Equal(t, connectivity.Ready, cc.GetState())
		})
	}
}

// TestGracefulStop: calls in flight run to completion, new ones are refused.
func TestGracefulStop(t *testing.T) {
	onEach(t, func(t *testing.T, l net.Listener, d *rdmanet.Dialer) {
		s := serve(t, l)
		c := client(t, "rdma://"+l.Addr().String(), d)
		inFlight, err := c.StreamingCall(callContext(t))
		require.NoError(t, err)
		ask := func() {
			t.Helper()
			want := request(100 << 10)
			require.NoError(t, inFlight.Send(want))
			got, err := inFlight.Recv()
			require.NoError(t, err)
			assert.Equal(t, want.GetPayload().GetBody(), got.GetPayload().GetBody())
		}
		ask()
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			s.GracefulStop()
		}()
		assert.EventuallyWithT(t, func(seen *assert.CollectT) {
			_, err := c.UnaryCall(t.Context(), request(1))
			assert.Equal(seen, codes.Unavailable, status.Code(err))
			assert.ErrorContains(seen, err, "refused")
		}, patience, tick)
		ask()
		select {
		case <-stopped:
			assert.Fail(t, "the server stopped with a call in flight")
		default:
		}
		require.NoError(t, inFlight.CloseSend())
		_, err = inFlight.Recv()
		assert.ErrorIs(t, err, io.EOF)
		<-stopped
	})
}
