package engine

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// link is two endpoints of one simulated network, connected.
type link struct {
	net    *simfabric.Network
	ea, eb *Endpoint
	a, b   *Peer // a dials, b listens
	accept chan *Conn
}

func newLink(t testing.TB, sim simfabric.Config, cfg Config) *link {
	t.Helper()
	l := &link{net: simfabric.New(sim), accept: make(chan *Conn, 1024)}
	open := func() *Endpoint {
		name := sim.Provider
		if name == "" {
			name = "sim"
		}
		fe, err := l.net.Open(name, netip.Addr{})
		require.NoError(t, err)
		e, err := NewEndpoint(fe, cfg)
		require.NoError(t, err)
		return e
	}
	l.ea, l.eb = open(), open()
	t.Cleanup(func() { require.Empty(t, l.net.Stats().Misuse) })
	var err error
	l.a, err = l.ea.NewPeer(PeerConfig{})
	require.NoError(t, err)
	l.b, err = l.eb.NewPeer(PeerConfig{Accept: func(c *Conn, listener uint32) framing.ResetCode {
		if listener != 7 {
			return framing.ResetRefused
		}
		l.accept <- c
		return 0
	}})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	require.NoError(t, l.a.Connect(ctx, l.b.Local()))
	require.NoError(t, l.b.Connect(ctx, l.a.Local()))
	require.NoError(t, l.a.Check(ctx))
	if l.ea.waiter == nil {
		fa, fb := new(atomic.Uint32), new(atomic.Uint32)
		// A doorbell comes from the goroutine that reads the rendezvous
		// connection, never from the one that rings.
		l.a.Attached(Bell{Own: fa, Peer: fb, Ring: func() { go l.b.Doorbell() }})
		l.b.Attached(Bell{Own: fb, Peer: fa, Ring: func() { go l.a.Doorbell() }})
	} else {
		l.a.Attached(Bell{})
		l.b.Attached(Bell{})
	}
	l.watch(t)
	return l
}

// watch prints both sides' state if the test takes very long.
func (l *link) watch(t testing.TB) {
	timer := time.AfterFunc(15*time.Second, func() {
		for _, p := range []*Peer{l.a, l.b} {
			p.e.mu.Lock()
			t.Logf("state %d ticking %v %s", p.e.state.Load(), p.e.ticking.Load(), dumpPeer(p.e.core, p.p))
			p.e.mu.Unlock()
		}
	})
	t.Cleanup(func() { timer.Stop() })
}

func (l *link) close(t testing.TB) {
	t.Helper()
	require.NoError(t, l.ea.Close())
	require.NoError(t, l.eb.Close())
	require.Zero(t, l.ea.cfg.Budget.Stats().Used, "memory budget")
	s := l.net.Stats()
	require.Zero(t, s.SendsWithoutReceive, "sends that found no receive posted")
	require.Zero(t, s.PeerUnmapped, "calls after the peer's memory was unmapped")
}

func (l *link) dial(t testing.TB) (*Conn, *Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c1, err := l.a.Open(ctx, 7)
	require.NoError(t, err)
	return c1, <-l.accept
}

// netConn makes a Conn a net.Conn for nettest, with errors wrapped the way the
// public package wraps them.
type netConn struct{ *Conn }

func (netConn) LocalAddr() net.Addr  { return &net.TCPAddr{} }
func (netConn) RemoteAddr() net.Addr { return &net.TCPAddr{} }

// personalities is every way of notification, local registration demanded or
// not, inject from 0 to 4096, queue depths down to 1, with and without order.
func personalities() map[string]simfabric.Config {
	with := func(p simfabric.Personality, f func(*simfabric.Config)) simfabric.Config {
		c := simfabric.Config{Seed: 1, Personality: p}
		if f != nil {
			f(&c)
		}
		return c
	}
	awkward := func(c *simfabric.Config) { c.Delay, c.CompletionReorder, c.AgainRate = 4, true, 0.1 }
	return map[string]simfabric.Config{
		"shm":              with(simfabric.Shm(), nil),
		"tcp":              with(simfabric.TCP(), nil),
		"net":              with(simfabric.Net(), nil),
		"verbs":            with(simfabric.Verbs(), nil),
		"efa":              with(simfabric.EFA(), nil),
		"efa-direct":       with(simfabric.EFADirect(), awkward),
		"cxi":              with(simfabric.CXI(), awkward),
		"opx":              with(simfabric.OPX(), awkward),
		"psm3":             with(simfabric.PSM3(), awkward),
		"cqdata":           with(simfabric.RuleCQData(), nil),
		"saw":              with(simfabric.RuleSendAfterWrite(), nil),
		"deliver":          with(simfabric.RuleDeliveryComplete(), nil),
		"cqdata/awkward":   with(simfabric.RuleCQData(), awkward),
		"saw/awkward":      with(simfabric.RuleSendAfterWrite(), awkward),
		"deliver/awkward":  with(simfabric.RuleDeliveryComplete(), awkward),
		"shm/awkward":      with(simfabric.Shm(), awkward),
		"cqdata/depth 1":   with(simfabric.RuleCQData(), func(c *simfabric.Config) { awkward(c); c.TxDepth, c.RxDepth = 1, 8 }),
		"saw/depth 1":      with(simfabric.RuleSendAfterWrite(), func(c *simfabric.Config) { awkward(c); c.TxDepth, c.RxDepth = 1, 8 }),
		"deliver/depth 1":  with(simfabric.RuleDeliveryComplete(), func(c *simfabric.Config) { awkward(c); c.TxDepth, c.RxDepth = 1, 8 }),
		"cqdata/inject 4K": with(simfabric.RuleCQData(), func(c *simfabric.Config) { c.InjectSize = 4096 }),
		"small messages":   with(simfabric.RuleDeliveryComplete(), func(c *simfabric.Config) { awkward(c); c.MaxMsgSize = 512 }),
		"no large data":    with(simfabric.Personality{}, awkward),
	}
}

var _ fabric.Fabric = (*simfabric.Network)(nil)
