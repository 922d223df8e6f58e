package grpcdialer_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	channelz "google.golang.org/grpc/channelz/grpc_channelz_v1"
	"google.golang.org/grpc/channelz/service"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"

	"github.com/seed202c38ff/fabricnet/grpcdialer"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// These are the shortest intervals that gRPC accepts.
const (
	clientInterval = 10 * time.Second
	serverInterval = time.Second
)

// TestClientKeepsIdleConnAlive: a client without calls pings its server, which
// answers, and the conn lives on. All providers wait at the same time.
func TestClientKeepsIdleConnAlive(t *testing.T) {
	t.Parallel()
	for _, provider := range testenv.Providers() {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			l, d := listen(t, provider)
			s := newServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
				MinTime: clientInterval / 2, PermitWithoutStream: true,
			}))
			grpc_testing.RegisterBenchmarkServiceServer(s, echo{})
			service.RegisterChannelzServiceToServer(s)
			start(t, s, l)
			target := "rdma://" + l.Addr().String()
			cc := dial(t, target, d, grpc.WithKeepaliveParams(keepalive.ClientParameters{
				Time: clientInterval, Timeout: patience, PermitWithoutStream: true,
			}))
			c := grpc_testing.NewBenchmarkServiceClient(cc)
			var before, after peer.Peer
			_, err := c.UnaryCall(callContext(t), request(1), grpc.Peer(&before))
			require.NoError(t, err)
			z := channelz.NewChannelzClient(dial(t, l.Addr().String(), d)) // another client: calls over cc would take the place of pings
			assert.EventuallyWithT(t, func(c *assert.CollectT) {
				assert.Positive(c, pings(t, z, target))
			}, clientInterval+patience, 50*time.Millisecond)
			assert.Equal(t, connectivity.Ready, cc.GetState())
			_, err = c.UnaryCall(callContext(t), request(1), grpc.Peer(&after))
			require.NoError(t, err)
			assert.Equal(t, whose(t, &before).ID, whose(t, &after).ID)
		})
	}
}

// pings returns how many pings the target's client has sent over its one conn.
func pings(t *testing.T, z channelz.ChannelzClient, target string) int64 {
	t.Helper()
	sub, err := z.GetSubchannel(callContext(t), &channelz.GetSubchannelRequest{
		SubchannelId: channelTo(t, z, target).GetSubchannelRef()[0].GetSubchannelId(),
	})
	require.NoError(t, err)
	refs := sub.GetSubchannel().GetSocketRef()
	require.Len(t, refs, 1)
	socket, err := z.GetSocket(callContext(t), &channelz.GetSocketRequest{SocketId: refs[0].GetSocketId()})
	require.NoError(t, err)
	return socket.GetSocket().GetData().GetKeepAlivesSent()
}

// deaf is a conn whose Read blocks from when now is set until gone is closed.
type deaf struct {
	net.Conn
	now  *atomic.Bool
	gone chan struct{}
}

func (d deaf) Read(b []byte) (int, error) {
	n, err := d.Conn.Read(b)
	if d.now.Load() && err == nil {
		<-d.gone
	}
	return n, err
}

// TestServerDropsDeafClient: a client loses its conn if it does not answer pings, although its
// process is alive, so that the fabric sees nothing wrong with it.
func TestServerDropsDeafClient(t *testing.T) {
	t.Parallel()
	const pongs = 3 * serverInterval // how long an answer may take
	for _, provider := range testenv.Providers() {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			l, d := listen(t, provider)
			m := newMeter()
			serve(t, l, grpc.StatsHandler(m), grpc.KeepaliveParams(keepalive.ServerParameters{Time: serverInterval, Timeout: pongs}))
			var now atomic.Bool
			gone := make(chan struct{})
			c := client(t, "rdma://"+l.Addr().String(), nil, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
				conn, err := grpcdialer.ContextDialer(d)(ctx, addr)
				if err != nil {
					return nil, err
				}
				return deaf{conn, &now, gone}, nil
			}))
			t.Cleanup(func() { close(gone) }) // before the client is closed
			_, err := c.UnaryCall(callContext(t), request(1))
			require.NoError(t, err)
			ended := func() int {
				m.mu.Lock()
				defer m.mu.Unlock()
				return m.ends
			}
			time.Sleep(serverInterval + pongs + serverInterval/2)
			assert.Zero(t, ended(), "pings were answered")
			now.Store(true)
			assert.Eventually(t, func() bool { return ended() == 1 }, patience, tick)
		})
	}
}

// TestConnsOfLimitedAge: if a server closes conns that are idle or old, its clients dial new
// ones, and no call fails.
func TestConnsOfLimitedAge(t *testing.T) {
	const limit = 200 * time.Millisecond
	for name, params := range map[string]keepalive.ServerParameters{
		"idle": {MaxConnectionIdle: limit},
		"age":  {MaxConnectionAge: limit, MaxConnectionAgeGrace: patience},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, l net.Listener, d *rdmanet.Dialer) {
				m := newMeter()
				serve(t, l, grpc.StatsHandler(m), grpc.KeepaliveParams(params))
				c := client(t, "rdma://"+l.Addr().String(), d)
				ids := make(map[uint64]bool)
				for until := time.Now().Add(patience); len(ids) < 3 && time.Now().Before(until); {
					var p peer.Peer
					_, err := c.UnaryCall(callContext(t), request(100), grpc.Peer(&p))
					require.NoError(t, err)
					ids[whose(t, &p).ID] = true
					if params.MaxConnectionIdle > 0 {
						idle(t, m, len(ids))
					}
				}
				assert.Len(t, ids, 3)
			})
		})
	}
}

// idle waits until the server has closed as many conns as conns says.
func idle(t *testing.T, m *meter, conns int) {
	t.Helper()
	assert.Eventually(t, func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.ends == conns
	}, patience, tick)
}
