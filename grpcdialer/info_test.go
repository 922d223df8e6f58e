package grpcdialer_test

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// witness is an echo that sends to infos, for each call, the ConnInfo behind the peer's remote
// and local address.
type witness struct {
	echo
	infos chan rdmanet.ConnInfo
}

func (w witness) UnaryCall(ctx context.Context, in *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	if p, ok := peer.FromContext(ctx); ok {
		for _, a := range []net.Addr{p.Addr, p.LocalAddr} {
			info, _ := rdmanet.InfoOf(a)
			w.infos <- info
		}
	}
	return w.echo.UnaryCall(ctx, in)
}

// meter is a stats handler that records the conns that it is told of.
type meter struct {
	mu   sync.Mutex
	tags []*stats.ConnTagInfo
	seen map[uint64]rdmanet.ConnInfo
	ends int
	rpcs int
}

func (m *meter) TagConn(ctx context.Context, tag *stats.ConnTagInfo) context.Context {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tags = append(m.tags, tag)
	for _, a := range []net.Addr{tag.RemoteAddr, tag.LocalAddr} {
		if info, ok := rdmanet.InfoOf(a); ok {
			m.seen[info.ID] = info
		}
	}
	return ctx
}

func (m *meter) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnEnd); ok {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.ends++
	}
}

func (m *meter) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC counts the headers whose remote address leads to a ConnInfo.
func (m *meter) HandleRPC(_ context.Context, s stats.RPCStats) {
	var remote net.Addr
	switch s := s.(type) {
	case *stats.InHeader:
		remote = s.RemoteAddr // on a server
	case *stats.OutHeader:
		remote = s.RemoteAddr // on a client
	}
	if remote == nil {
		return
	}
	if _, ok := rdmanet.InfoOf(remote); ok {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.rpcs++
	}
}

func newMeter() *meter { return &meter{seen: make(map[uint64]rdmanet.ConnInfo)} }

// TestConnInfoOfCalls: both sides can find out which conn a call went over, from the call's
// peer and from stats handlers, also with TLS credentials in between.
func TestConnInfoOfCalls(t *testing.T) {
	pki := newPKI(t)
	for _, tt := range []struct {
		name   string
		server []grpc.ServerOption
		client []grpc.DialOption
	}{
		{"clear text", nil, nil},
		{"TLS", []grpc.ServerOption{grpc.Creds(credentials.NewTLS(pki.server()))},
			[]grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(pki.client()))}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onEach(t, func(t *testing.T, l net.Listener, d *rdmanet.Dialer) {
				const calls = 3
				w := witness{infos: make(chan rdmanet.ConnInfo, 2*calls)}
				server, client := newMeter(), newMeter()
				serveAs(t, l, w, append(tt.server, grpc.StatsHandler(server))...)
				cc := dial(t, "rdma://"+l.Addr().String(), d, append(tt.client, grpc.WithStatsHandler(client))...)
				c := grpc_testing.NewBenchmarkServiceClient(cc)

				var p peer.Peer
				for range calls {
					_, err := c.UnaryCall(callContext(t), request(100), grpc.Peer(&p))
					require.NoError(t, err)
				}
				close(w.infos)
				assert.Equal(t, l.Addr().String(), p.Addr.String())
				own, theirs := whose(t, &p), <-w.infos
				assert.Equal(t, d.Providers[0], own.Provider)
				assert.Equal(t, d.Providers[0], theirs.Provider)
				assert.Positive(t, own.SmallSent+own.LargeSent)
				assert.NotEqual(t, own.ID, theirs.ID, "each end has a conn of its own")
				for info := range w.infos {
					assert.Equal(t, theirs.ID, info.ID, "all calls over one conn")
				}
				require.NoError(t, cc.Close())
				after, ok := rdmanet.InfoOf(p.Addr)
				assert.True(t, ok, "of a closed conn, too")
				assert.Equal(t, own.ID, after.ID)

				for _, side := range []struct {
					*meter
					id uint64
				}{{client, own.ID}, {server, theirs.ID}} {
					assert.EventuallyWithT(t, func(c *assert.CollectT) {
						side.mu.Lock()
						defer side.mu.Unlock()
						assert.Equal(c, 1, side.ends)
					}, patience, tick)
					side.mu.Lock()
					assert.Len(t, side.tags, 1)
					assert.Len(t, side.seen, 1)
					assert.Contains(t, side.seen, side.id)
					assert.Equal(t, calls, side.rpcs)
					side.mu.Unlock()
				}
				assert.Equal(t, client.tags[0].RemoteAddr.String(), server.tags[0].LocalAddr.String())
				assert.Equal(t, client.tags[0].LocalAddr.String(), server.tags[0].RemoteAddr.String())
			})
		})
	}
}
