package engine

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// link is two endpoints of one simulated network, connected.
type link struct {
	net    *simfabric.Network
	ea, eb *Endpoint
	a, b   *Peer // a dials, b listens
	accept chan *Conn
	maps   mapsMemory // how each side maps the other's landing rings; nil: it does not
}

// mapsMemory is how a side with that budget maps its peer's memory.
type mapsMemory func(*pool.Budget) func(pool.SharedName) (*pool.Slab, error)

// thisProcess is where both sides of a test find each other's memory.
var thisProcess = sync.OnceValues(func() (*os.File, error) { return os.Open("/proc/self") })

// opens is the usual mapsMemory: it opens the other side's memory by way of thisProcess.
func opens(b *pool.Budget) func(pool.SharedName) (*pool.Slab, error) {
	return func(n pool.SharedName) (*pool.Slab, error) {
		proc, err := thisProcess()
		if err != nil {
			return nil, err
		}
		return pool.OpenSlab(b, proc, n)
	}
}

func newLink(t testing.TB, sim simfabric.Config, cfg Config) *link {
	t.Helper()
	l, err := newLinkOf(sim, cfg, func(e fabric.Endpoint) fabric.Endpoint { return e })
	require.NoError(t, err)
	t.Cleanup(func() { require.Empty(t, l.net.Stats().Misuse) })
	l.watch(t)
	return l
}

// newLinkOf is newLink with endpoints that were passed through wrap. With an error, the link is as far as it came.
func newLinkOf(sim simfabric.Config, cfg Config, wrap func(fabric.Endpoint) fabric.Endpoint) (l *link, err error) {
	return newLinkMapping(sim, cfg, wrap, opens)
}

// newLinkOn is newLinkOf for a test that has a use for what wrap makes: the dialling side's end, and the other.
func newLinkOn[E fabric.Endpoint](t testing.TB, sim simfabric.Config, cfg Config, wrap func(fabric.Endpoint) E) (l *link, ends []E) {
	t.Helper()
	l, err := newLinkOf(sim, cfg, func(e fabric.Endpoint) fabric.Endpoint {
		ends = append(ends, wrap(e))
		return ends[len(ends)-1]
	})
	require.NoError(t, err)
	return l, ends
}

// openOn opens an endpoint of a network, passed through wraps.
func openOn(t testing.TB, n *simfabric.Network, prov string, cfg Config, wraps ...func(fabric.Endpoint) fabric.Endpoint) *Endpoint {
	t.Helper()
	fe, err := n.Open(cmp.Or(prov, "sim"), netip.Addr{})
	require.NoError(t, err)
	for _, wrap := range wraps {
		fe = wrap(fe)
	}
	e, err := NewEndpoint(fe, cfg)
	require.NoError(t, err)
	return e
}

// introduce makes two endpoints peers of each other, whose path is still to be checked.
func introduce(t testing.TB, from, to *Endpoint, accept func(*Conn, uint32) (uint16, framing.ResetCode)) (dialer, listener *Peer) {
	t.Helper()
	dialer, err := from.NewPeer(PeerConfig{})
	require.NoError(t, err)
	listener, err = to.NewPeer(PeerConfig{Unproven: true, Accept: accept})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, errors.Join(dialer.Connect(ctx, listener.Local()), listener.Connect(ctx, dialer.Local())))
	return dialer, listener
}

// newLinkMapping is newLinkOf with a way to map memory, for fabrics on which that is done.
func newLinkMapping(sim simfabric.Config, cfg Config, wrap func(fabric.Endpoint) fabric.Endpoint, maps mapsMemory) (l *link, err error) {
	l = &link{net: simfabric.New(sim), accept: make(chan *Conn, 1024)}
	if sim.SameHost {
		l.maps = maps
	}
	for _, e := range []**Endpoint{&l.ea, &l.eb} {
		fe, err := l.net.Open(cmp.Or(sim.Provider, "sim"), netip.Addr{})
		if err != nil {
			return l, err
		}
		if *e, err = NewEndpoint(wrap(fe), cfg); err != nil {
			return l, errors.Join(err, fe.Close())
		}
	}
	return l, l.connect(l.ea.fab.Waiter() == nil && sim.SameHost)
}

// sharedBlock is mappable memory: a block that takes all of an arena, which the side that gave token may name as its own.
func sharedBlock(size int, token [16]byte) (*pool.Arena, *pool.Block, error) {
	a := pool.NewArena(pool.NewBudget(0), nil, pool.AccessRemoteWrite, size)
	a.Share(framing.MemoryMark(token))
	slab, err := a.Map(size)
	if err != nil {
		return nil, nil, err
	}
	a.Add(slab)
	return a, a.Get(size), nil
}

// giveUp ends conns that may be lost, or closed, by now.
func giveUp(conns ...*Conn) {
	for _, c := range conns {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}

// closeConns closes conns, one after the other.
func closeConns(t testing.TB, conns ...*Conn) {
	t.Helper()
	for _, c := range conns {
		require.NoError(t, c.Close())
	}
}

// resetConns ends conns, whatever has not been sent or read.
func resetConns(t testing.TB, conns ...*Conn) {
	t.Helper()
	for _, c := range conns {
		require.NoError(t, c.SetLinger(0))
		closeConns(t, c)
	}
}

// connect makes the two endpoints peers of each other, with doorbells if they stand for processes of one host.
func (l *link) connect(doorbells bool) (err error) {
	var memory [2]func(pool.SharedName) (*pool.Slab, error)
	if l.maps != nil {
		memory[0], memory[1] = l.maps(l.ea.core.cfg.Budget), l.maps(l.eb.core.cfg.Budget)
	}
	if l.a, err = l.ea.NewPeer(PeerConfig{Memory: memory[0]}); err != nil {
		return err
	}
	if l.b, err = l.eb.NewPeer(PeerConfig{Memory: memory[1], Accept: l.take}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err = errors.Join(l.a.Connect(ctx, l.b.Local()), l.b.Connect(ctx, l.a.Local()))
	if err == nil {
		err = l.a.Check(ctx)
	}
	var both [2]Doorbell
	var spills [2]Spill
	if doorbells {
		spills[0] = Spill{make([]byte, SpillSize), make([]byte, SpillSize)}
		spills[1] = Spill{spills[0].Peer, spills[0].Own}
		fa, fb := new(atomic.Uint32), new(atomic.Uint32)
		a, b := map[bool]simfabric.Bell{}, map[bool]simfabric.Bell{} // by whether it is the leader's, or the watcher's
		for _, leader := range []bool{true, false} {
			a[leader], b[leader] = simfabric.NewBell(), simfabric.NewBell()
		}
		both[0] = Doorbell{Own: fa, Peer: fb, Ring: func(l bool) { b[l].Wake() }, Bell: a[true], Watcher: a[false]}
		both[1] = Doorbell{Own: fb, Peer: fa, Ring: func(l bool) { a[l].Wake() }, Bell: b[true], Watcher: b[false]}
	}
	l.a.Attached(both[0], spills[0])
	l.b.Attached(both[1], spills[1])
	return err
}

// anyPort is the port of a conn where that does not matter.
const anyPort = 1024

func (l *link) take(c *Conn, listener uint32) (port uint16, code framing.ResetCode) {
	if listener != 7 {
		return 0, framing.ResetRefused
	}
	l.accept <- c
	return anyPort, 0
}

// watch prints both sides' state if the test takes very long.
func (l *link) watch(t testing.TB) {
	timer := time.AfterFunc(15*time.Second, func() {
		for _, p := range []*Peer{l.a, l.b} {
			p.e.mu.Lock()
			t.Logf("%v %s", p.e.poller, dumpPeer(p.e.core, p.p))
			p.e.mu.Unlock()
		}
	})
	t.Cleanup(func() { timer.Stop() })
}

// end closes the endpoints.
func (l *link) end(t testing.TB) {
	t.Helper()
	require.NoError(t, l.ea.Close())
	require.NoError(t, l.eb.Close())
}

// close is end, after which nothing may be left.
func (l *link) close(t testing.TB) {
	t.Helper()
	l.end(t)
	require.Zero(t, l.ea.core.cfg.Budget.Stats().Used, "memory budget")
	require.Zero(t, l.ea.core.cfg.Budget.Stats().Foreign+l.eb.core.cfg.Budget.Stats().Foreign, "memory of the peer's")
	s := l.net.Stats()
	require.Zero(t, s.SendsWithoutReceive, "sends that found no receive posted")
	require.Zero(t, s.PeerUnmapped, "calls after the peer's memory was unmapped")
}

func (l *link) dial(t testing.TB) (*Conn, *Conn) {
	t.Helper()
	return dialTo(t, l.a, l.accept)
}

// dialTo opens a conn with a peer, which accept has then, too.
func dialTo(t testing.TB, p *Peer, accept <-chan *Conn) (outer, inner *Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	outer, err := p.Open(ctx, 7)
	require.NoError(t, err)
	return outer, <-accept
}

// newConns is newLink with the two ends of a conn. The link is closed at the end of the test.
func newConns(t testing.TB, sim simfabric.Config, cfg Config) (l *link, a, b *Conn) {
	t.Helper()
	l = newLink(t, sim, cfg)
	t.Cleanup(func() { l.close(t) })
	a, b = l.dial(t)
	return l, a, b
}

// writeN writes n bytes to a conn.
func writeN(c *Conn, n int) error {
	_, err := c.Write(make([]byte, n))
	return err
}

// readN reads n bytes from a conn.
func readN(c *Conn, n int) error {
	_, err := io.ReadFull(c, make([]byte, n))
	return err
}

// begin calls f in a goroutine of its own, and returns what gets its result.
func begin(f func() error) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	return ended
}

// comesTrue waits for a condition that a busy machine may keep waiting for long.
func comesTrue(t testing.TB, it func() bool, what ...any) {
	t.Helper()
	require.Eventually(t, it, 10*time.Second, time.Millisecond, what...)
}

// carry writes n bytes to one conn while it reads them from the other.
func carry(t testing.TB, from, to *Conn, n int) {
	t.Helper()
	sent := begin(func() error { return writeN(from, n) })
	require.NoError(t, readN(to, n))
	require.NoError(t, <-sent)
}

// sendBuffer is SendBuffer for callers that do not ask how much of the Buffer was sent.
func sendBuffer(c *Conn, b *Buffer) error {
	_, err := c.SendBuffer(b)
	return err
}

// netConn makes a Conn a net.Conn. Its errors are not wrapped: see opErr.
type netConn struct{ *Conn }

func (netConn) LocalAddr() net.Addr  { return &net.TCPAddr{} }
func (netConn) RemoteAddr() net.Addr { return &net.TCPAddr{} }

// personalities covers every way of notification, with and without required local registration,
// injects from 0 to 4096 bytes, queue depths down to 1, with and without order.
func personalities() map[string]simfabric.Config {
	with := func(p simfabric.Personality, f func(*simfabric.Config)) simfabric.Config {
		c := simfabric.Config{Seed: 1, Personality: p}
		f(&c)
		return c
	}
	awkward := func(c *simfabric.Config) { c.Delay, c.CompletionReorder, c.AgainRate = 4, true, 0.1 }
	all := map[string]simfabric.Config{
		"shm/awkward":      with(simfabric.Shm(), awkward),
		"cqdata/inject 4K": with(simfabric.RuleCQData(), func(c *simfabric.Config) { c.InjectSize = 4096 }),
		"small messages":   with(simfabric.RuleDeliveryComplete(), func(c *simfabric.Config) { awkward(c); c.MaxMsgSize = 512 }),
	}
	for name, p := range map[string]simfabric.Personality{
		"cqdata": simfabric.RuleCQData(), "saw": simfabric.RuleSendAfterWrite(), "deliver": simfabric.RuleDeliveryComplete(),
	} {
		all[name+"/awkward"] = with(p, awkward)
		all[name+"/depth 1"] = with(p, func(c *simfabric.Config) { awkward(c); c.TxDepth, c.RxDepth = 1, 8 })
	}
	for _, p := range simfabric.Presets() {
		all[p.Name] = simfabric.Config{Seed: 1, Personality: p.Personality}
		if p.Awkward {
			all[p.Name] = with(p.Personality, awkward)
		}
	}
	return all
}

// onEach runs test with a conn over each of personalities, at the same time.
func onEach(t *testing.T, test func(t *testing.T, l *link, a, b *Conn)) {
	onEachOf(t, personalities(), test)
}

// onEachWithRings is onEach where large data goes to rings.
func onEachWithRings(t *testing.T, test func(t *testing.T, l *link, a, b *Conn)) {
	all := personalities()
	delete(all, "no large data")
	delete(all, "small messages")
	onEachOf(t, all, test)
}

func onEachOf(t *testing.T, all map[string]simfabric.Config, test func(t *testing.T, l *link, a, b *Conn)) {
	for name, sim := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, a, b := newConns(t, sim, Config{})
			test(t, l, a, b)
		})
	}
}

var _ fabric.Fabric = (*simfabric.Network)(nil)
