package engine

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// lessor is a stream whose rings lie in an arena of size bytes, and the table of its leases.
func lessor(t testing.TB, b *pool.Budget, size int) (*stream, *leases) {
	t.Helper()
	arena := pool.NewArena(b, nil, pool.AccessRemoteWrite, size)
	slab, err := arena.Map(size)
	require.NoError(t, err)
	arena.Add(slab)
	t.Cleanup(func() {
		require.NoError(t, arena.Close())
		require.Zero(t, b.Stats().Used)
	})
	c := &core{}
	return &stream{p: &peer{c: c, id: 1, inLanding: inLanding{landing: arena}}}, &c.leases
}

// grantLease grants a lease that begins at largeIn, nil if there is no room for a ring.
func grantLease(t *testing.T, s *stream) *inLease {
	t.Helper()
	l := &inLease{lease: lease{Ring: s.p.landing.Get(pool.MinBlock), stream: s, base: s.largeIn}}
	if l.Ring == nil {
		return nil
	}
	require.True(t, s.p.c.leases.grant(l))
	return l
}

func TestLeaseHandshake(t *testing.T) {
	s, table := lessor(t, pool.NewBudget(0), 1<<20)
	l := grantLease(t, s)
	assert.Equal(t, lessee{s.p.id, l}, table.named(l.Index))
	assert.Zero(t, table.named(l.Index+1))
	assert.False(t, l.drained())

	s.largeRel = 100
	l.state = leaseRevoking
	assert.False(t, l.drained())

	require.ErrorIs(t, l.endAt(99), errProtocol, "less than released")
	require.ErrorIs(t, l.endAt(100+pool.MinBlock+1), errProtocol, "more than granted")
	assert.Equal(t, leaseRevoking, l.state)
	require.NoError(t, l.endAt(300))
	require.NoError(t, l.endAt(300))
	require.ErrorIs(t, l.endAt(301), errProtocol)
	assert.False(t, l.drained(), "200 bytes are not read yet")
	s.largeRel = 400 // past the end, which is of no use to the peer
	assert.True(t, l.drained())

	table.drop(l)
	assert.Equal(t, leaseDropped, l.state)
	assert.Equal(t, lessee{peer: s.p.id}, table.named(l.Index), "until the index is granted to another")
	assert.Zero(t, s.p.landing.Stats().Blocks)
	assert.Zero(t, table.out())
	assert.Panics(t, func() { table.drop(l) })
}

// TestLeaseOfSecondRing: what is unread of the first ring is no part of the second.
func TestLeaseOfSecondRing(t *testing.T) {
	s, _ := lessor(t, pool.NewBudget(0), 1<<20)
	s.largeIn, s.largeRel = 500, 200
	l := grantLease(t, s)
	assert.EqualValues(t, 500, l.released())
	require.ErrorIs(t, l.endAt(499), errProtocol)
	require.ErrorIs(t, l.endAt(500+pool.MinBlock+1), errProtocol)
	require.NoError(t, l.endAt(500))
	assert.True(t, l.drained())
}

func TestLeaseDropped(t *testing.T) {
	b := pool.NewBudget(0)
	s, table := lessor(t, b, 1<<20)
	first, second := grantLease(t, s), grantLease(t, s)
	table.drop(first)
	require.NoError(t, s.p.landing.Deregister())
	table.drop(second)
	assert.Zero(t, table.out())
	assert.NotZero(t, b.Stats().Used, "quarantined")
}

func TestLeaseIndices(t *testing.T) {
	s, table := lessor(t, pool.NewBudget(0), 1<<20)
	var given [8]*inLease
	for i := range given {
		given[i] = grantLease(t, s)
		require.EqualValues(t, i, given[i].Index)
	}
	l := &inLease{lease: lease{stream: s}}
	gets := func(i int) {
		require.True(t, table.grant(l))
		require.EqualValues(t, i, l.Index)
	}
	for i := len(given); i < maxLeases; i++ {
		gets(i)
	}
	assert.False(t, table.grant(l))
	table.drop(given[7])
	table.drop(given[3])
	gets(7) // first in, first out
	gets(3)
}

// TestLeaseRandom: in whatever order leases come and go, a ring that the peer may still write to is never out again.
func TestLeaseRandom(t *testing.T) {
	s, table := lessor(t, pool.NewBudget(0), 1<<20)
	rng := rand.New(rand.NewPCG(3, 4))
	owner := make(map[*byte]*inLease) // by the ring's first byte
	var leases []*inLease
	for range 6000 {
		if len(leases) == 0 || rng.IntN(4) == 0 {
			if l := grantLease(t, s); l != nil {
				before := owner[&l.Ring.Bytes[0]]
				require.True(t, before == nil || before.state == leaseDropped, "ring is still out")
				l.base = uint64(rng.IntN(1000))
				owner[&l.Ring.Bytes[0]], leases = l, append(leases, l)
				continue
			}
		}
		i := rng.IntN(len(leases))
		l := leases[i]
		released, state := l.released(), l.state
		switch rng.IntN(4) {
		case 0:
			l.state = max(l.state, leaseRevoking)
		case 1:
			_ = l.endAt(s.largeRel + uint64(rng.IntN(2*pool.MinBlock)))
		case 2:
			s.largeRel += uint64(rng.IntN(1000))
		case 3:
			if l.drained() {
				require.GreaterOrEqual(t, s.largeRel, l.final)
				table.drop(l)
				leases = append(leases[:i], leases[i+1:]...)
			}
		}
		require.GreaterOrEqual(t, l.released(), released)
		require.GreaterOrEqual(t, l.state, state)
		require.Equal(t, len(leases), table.out())
		require.Equal(t, len(leases), s.p.landing.Stats().Blocks)
	}
	assert.Greater(t, len(table.table), 50)
}

func BenchmarkLease(b *testing.B) {
	s, table := lessor(b, pool.NewBudget(0), 1<<20)
	b.ReportAllocs()
	for b.Loop() {
		l := &inLease{lease: lease{Ring: s.p.landing.Get(pool.MinBlock), stream: s}}
		if !table.grant(l) || l.endAt(0) != nil || !l.drained() {
			b.Fatal("lease not returned")
		}
		table.drop(l)
	}
}

// leased opens n conns that have rings. The rings of the first unread of them hold data that is not read.
func leased(t *testing.T, l *link, n, unread int) (out, in []*Conn) {
	for i := range n {
		a, b := l.dial(t)
		warmUp(t, a, b)
		if i < unread {
			require.NoError(t, writeN(a, 32<<10))
		}
		out, in = append(out, a), append(in, b)
	}
	time.Sleep(2 * leaseTurn)
	return out, in
}

// recalls asks for rings as often as memory may be refused in a while, and reports whether c's was among them.
func recalls(l *link, c *Conn) bool {
	back := false
	for i := 0; i < 100 && !back; i++ {
		time.Sleep(time.Millisecond)
		locked(l.eb, func() {
			l.eb.core.makeRings()
			in := c.stream.inLease
			back = in == nil || in.state != leaseGranted
		})
	}
	return back
}

// TestRecallPassesSlowReaders: conns whose readers do not read do not keep the rings of others from being asked for.
func TestRecallPassesSlowReaders(t *testing.T) {
	virtual(t, Config{Ring: 64 << 10}, func(t *testing.T, l *link) {
		const n = 14
		_, in := leased(t, l, n, n-1)
		assert.True(t, recalls(l, in[n-1]))
	})
}

// TestRecallPassesStopped: nor do the conns of a process that is stopped, and so gives nothing back.
func TestRecallPassesStopped(t *testing.T) {
	s := newStar(t, simfabric.Config{Seed: 1, Personality: simfabric.TCP()}, Config{Ring: 64 << 10}, 2)
	defer s.close(t)
	var conns []*Conn
	for i := range 15 {
		outer, inner := s.dial(t, i/14)
		warmUp(t, outer, inner)
		conns = append(conns, outer, inner)
	}
	s.net.Freeze(s.spokes[0].fab)
	time.Sleep(2 * leaseTurn)
	l := &link{eb: s.hub}
	assert.True(t, recalls(l, conns[len(conns)-1]))
	s.net.Thaw(s.spokes[0].fab)
	resetConns(t, conns...)
}

// TestRecallEndsPeer: asking a peer that takes no answers for a ring ends it, beside closed conns that have rings.
func TestRecallEndsPeer(t *testing.T) {
	l := newLink(t, simfabric.Config{Seed: 1, Personality: simfabric.TCP()}, Config{Ring: 64 << 10, Spin: -1})
	_, in := leased(t, l, 3, 0)
	l.net.Freeze(l.ea.fab)
	defer l.net.Thaw(l.ea.fab)
	l.eb.enter()
	for _, c := range in[1:] {
		c.stream.close()
		require.NotNil(t, c.stream.inLease)
	}
	p := l.b.p
	for p.ctl.len() < maxControl+8*len(p.streams) {
		p.ctl.push(ctlFrame{})
	}
	for _, c := range in {
		c.stream.inLease.touched -= int64(2 * choreTime)
	}
	assert.NotPanics(t, func() { l.eb.core.reclaim() })
	assert.Error(t, p.err)
	l.eb.leave()
}
