package engine

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// star is an endpoint that several others have as a peer.
type star struct {
	net    *simfabric.Network
	cfg    Config // of the endpoints that are opened next
	open   func() *Endpoint
	hub    *Endpoint
	spokes []*Endpoint
	peers  []*Peer // the hub, as the spokes see it
	hubs   []*Peer // the spokes, as the hub sees them
	accept []chan *Conn
}

func newStar(t testing.TB, sim simfabric.Config, cfg Config, n int) *star {
	t.Helper()
	return newStarOf(t, sim, cfg, n, func(e fabric.Endpoint) fabric.Endpoint { return e })
}

// newBudgetStar is newStar where cfg's budget is the hub's. The spokes have their own.
func newBudgetStar(t testing.TB, sim simfabric.Config, cfg Config, n int) *star {
	t.Helper()
	s := newStar(t, sim, cfg, 0)
	s.cfg.Budget = nil
	for range n {
		s.join(t)
	}
	return s
}

// newStarOf is newStar with endpoints that were passed through wrap.
func newStarOf(t testing.TB, sim simfabric.Config, cfg Config, n int, wrap func(fabric.Endpoint) fabric.Endpoint) *star {
	t.Helper()
	s := &star{net: simfabric.New(sim), cfg: cfg}
	s.open = func() *Endpoint { return openOn(t, s.net, sim.Provider, s.cfg, wrap) }
	s.hub = s.open()
	for range n {
		s.join(t)
	}
	return s
}

// join makes one more endpoint a peer of the hub.
func (s *star) join(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	spoke, accept := s.open(), make(chan *Conn, 1)
	a, err := spoke.NewPeer(PeerConfig{})
	require.NoError(t, err)
	b, err := s.hub.NewPeer(PeerConfig{Accept: func(c *Conn, _ uint32) (uint16, framing.ResetCode) {
		accept <- c
		return anyPort, 0
	}})
	require.NoError(t, err)
	require.NoError(t, a.Connect(ctx, b.Local()))
	require.NoError(t, b.Connect(ctx, a.Local()))
	require.NoError(t, a.Check(ctx))
	a.Attached(Doorbell{}, Spill{})
	b.Attached(Doorbell{}, Spill{})
	s.spokes, s.peers, s.hubs, s.accept = append(s.spokes, spoke), append(s.peers, a), append(s.hubs, b), append(s.accept, accept)
}

// dial opens a conn from a spoke to the hub.
func (s *star) dial(t testing.TB, spoke int) (outer, inner *Conn) {
	t.Helper()
	return dialTo(t, s.peers[spoke], s.accept[spoke])
}

func (s *star) close(t testing.TB) {
	t.Helper()
	for _, e := range append(s.spokes, s.hub) {
		require.NoError(t, e.Close())
		require.Zero(t, e.core.cfg.Budget.Stats().Used, "memory budget")
	}
}

// quiet waits until the hub has posted nothing for a while.
func (s *star) quiet() {
	for last, still := uint64(0), 0; still < 20; still++ {
		time.Sleep(2 * time.Millisecond)
		if now := s.hub.Stats().Posted; now != last {
			last, still = now, 0
		}
	}
}

// TestSilentPeers: peers whose operations never complete, with dozens of writers each, hold up
// nobody else on the endpoint, neither while the writers write nor when all their conns are closed.
func TestSilentPeers(t *testing.T) {
	const writers, leased = 80, 10
	for _, name := range []string{"tcp", "verbs", "saw", "cqdata", "deliver/awkward", "depth 16"} {
		for _, silent := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s/%d", name, silent), func(t *testing.T) {
				t.Parallel()
				sim, ok := personalities()[name]
				if !ok {
					sim.Personality, silent = simfabric.RuleCQData(), min(silent, 2) // so few send slots are not enough for more
					sim.TxDepth = 16
				}
				// No peer is ended for what it does not take.
				s := newStar(t, sim, Config{DeadAfter: time.Hour}, silent+1)
				defer s.close(t)
				a, b := s.dial(t, silent)
				var conns, outers []*Conn
				for spoke := range silent {
					for i := range writers {
						outer, inner := s.dial(t, spoke)
						conns, outers = append(conns, inner), append(outers, outer)
						if i < leased { // it gets a landing ring
							carry(t, inner, outer, 128<<10)
						}
					}
				}
				for spoke := range silent {
					s.net.Kill(s.spokes[spoke].fab, simfabric.DeathSilent)
				}
				var wg sync.WaitGroup
				defer func() {
					giveUp(append(conns, outers...)...)
					wg.Wait()
					locked(s.hub, func() { assert.Zero(t, s.hub.core.awake, "writers that were woken and are not back") })
				}()
				for i, c := range conns {
					wg.Go(func() {
						for writeN(c, 500+i%2*(64<<10)) == nil {
						}
					})
				}
				s.quiet()
				healthy(t, a, b)
				for _, c := range conns {
					assert.NoError(t, c.SetLinger(1))
					wg.Go(func() { _ = c.Close() })
				}
				s.quiet()
				healthy(t, a, b)
				closeConns(t, a, b)
			})
		}
	}
}

// healthy moves small and large data both ways.
func healthy(t *testing.T, a, b *Conn) {
	t.Helper()
	const size = 300_000
	limit := time.Now().Add(10 * time.Second)
	var wg sync.WaitGroup
	for i, c := range []*Conn{a, b} {
		require.NoError(t, c.SetDeadline(limit))
		wg.Go(func() {
			for n, piece := 0, 1; n < size; n, piece = n+piece, 2*piece {
				if !assert.NoError(t, writeN(c, min(piece, size-n)), "writing, side %d", i) {
					return
				}
			}
		})
		wg.Go(func() { assert.NoError(t, readN(c, size), "reading, side %d", i) })
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}
