package engine

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// attached makes a peer on a core that nobody else uses. What it sends does not matter.
func attached(t *testing.T, c *core) *peer {
	t.Helper()
	addr, err := c.fab.Insert(c.fab.Name())
	require.NoError(t, err)
	p, err := newPeerAlone(c, [16]byte{byte(len(c.order))}, PeerConfig{})
	require.NoError(t, err)
	require.NoError(t, p.attach(&framing.Attach{Slots: 32, Eager: framing.MinEager}, addr))
	return p
}

// openWithRing opens a stream of such a peer that has a ring, and whose writer has a mebibyte left.
func openWithRing(t *testing.T, p *peer) *stream {
	t.Helper()
	s, err := p.open(7)
	require.NoError(t, err)
	p.c.flush()
	p.c.carryOut()
	s.port, s.grant = anyPort, grantHeld
	s.outLease = &outLease{Lease: framing.Lease{Size: 1 << 20, Chunk: chunkSize}}
	s.conn.left = 1 << 20
	return s
}

// TestCheckWaitsForStaging: a path check for which there was no staging memory goes on when there is some.
func TestCheckWaitsForStaging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.TCP()})
		a, b := openOn(t, n, simfabric.TCP().Provider, Config{Spin: -1, Budget: pool.NewBudget(64 << 20)}), openOn(t, n, simfabric.TCP().Provider, Config{Spin: -1})
		dials, _ := introduce(t, a, b, nil)
		dead, _ := introduce(t, a, b, nil)
		locked(a, func() {
			for a.core.stage.Free() > 0 { // and they never come back
				a.core.stage.Get()
				dead.p.holdStage(1)
			}
		})
		dead.Lost(ErrStuck)
		s := a.core.cfg.Budget.Stats()
		taken := s.Limit - s.Used - s.Limit/10
		require.NoError(t, a.core.cfg.Budget.Reserve(taken))
		time.AfterFunc(3*choreTime, func() { a.core.cfg.Budget.Release(taken) })
		ctx, cancel := context.WithTimeout(t.Context(), 10*choreTime)
		defer cancel()
		require.NoError(t, dials.Check(ctx))
		require.NoError(t, errors.Join(a.Close(), b.Close()))
	})
}

// TestWaiterAsksForStaging: a writer that waited for its peer's slots, and then lacks staging chunks, has more mapped.
func TestWaiterAsksForStaging(t *testing.T) {
	c, _ := lonelyCore(t)
	p, other := attached(t, c), attached(t, c)
	s := openWithRing(t, p)
	used := p.used
	p.used = p.credit
	s.wr.prepare()
	s.block()
	require.Equal(t, WaitsPeerSlots, s.lacks(s.conn.left))
	for c.stage.Free() > 0 {
		_, ok := other.takeStage(true)
		require.True(t, ok)
	}
	require.Equal(t, enough, c.staging.state)
	p.used = used
	c.touch(p)
	c.flush()
	require.Equal(t, WaitsStage, s.lacks(s.conn.left))
	require.Equal(t, asked, c.staging.state)
	c.carryOut()
	c.flush()
	require.False(t, s.wr.waiting)
}

// TestStagingIsAskedForAgain: a writer waits for staging memory, all of which others hold. Once they are dead it
// goes on in frames, and gets some once the budget has room, even if the budget has refused for a long time.
func TestStagingIsAskedForAgain(t *testing.T) {
	t.Run("plenty", func(t *testing.T) { stagingComes(t, func(hogged, _ int64) int64 { return hogged }) })
	t.Run("few chunks", func(t *testing.T) { stagingComes(t, func(_, limit int64) int64 { return limit/8 + 3*stepSize }) })
}

// stagingComes has a writer wait for staging memory until the budget has room again.
func stagingComes(t *testing.T, room func(hogged, limit int64) int64) {
	c, _ := lonelyCore(t)
	e := alone(c)
	live, dead := attached(t, c), []*peer{attached(t, c), attached(t, c)}
	c.discard(c.stage.Trim()...)
	slab, err := c.stage.Map(2) // all that there was room for
	require.NoError(t, err)
	c.stage.Add(slab, 2)
	for _, p := range dead {
		slot, ok := p.takeStage(true)
		require.True(t, ok)
		c.takeOp(txOp{peer: p, from: c.stage, slot: slot}) // which never completes
	}
	s := openWithRing(t, live)
	budget := c.cfg.Budget
	hogged := budget.Stats().Limit - budget.Stats().Used
	require.NoError(t, budget.Reserve(hogged))
	require.Nil(t, s.prepareLarge(1<<20).mem)
	require.Zero(t, s.writeFrames(make([]byte, 1<<20)))
	s.wr.prepare()
	s.block()
	require.Equal(t, writerBlocked, s.writer)
	for _, p := range dead {
		p.doom(ErrStuck)
	}
	c.flush()
	look := func(n int) {
		for again := true; again && n > 0; n-- { // no more often than chores says
			e.mu.Lock()
			c.chores()
			again = c.busy()
			c.carryOut()
			c.flush()
			e.mu.Unlock()
		}
	}
	look(10)
	require.Equal(t, 2, c.stage.Len(), "the budget is full")
	require.False(t, s.wr.waiting, "it waits for dead peers")
	require.False(t, s.ringServes())
	s.woke()
	c.flush()      // it stands in line no more
	s.wr.prepare() // as there is no room for a frame
	s.block()
	require.True(t, s.wr.waiting)
	budget.Release(room(hogged, budget.Stats().Limit))
	look(10)
	require.False(t, s.wr.waiting, "the writer waits for ever: %d chunks, %d free", c.stage.Len(), c.stage.Free())
	require.True(t, s.ringServes())
}

// transfer moves size bytes each way, and checks nothing but their number.
func transfer(a, b *Conn, size int) error {
	errs := make(chan error, 4)
	for _, c := range []*Conn{a, b} {
		go func() { errs <- writeN(c, size) }()
		go func() { _, err := io.CopyN(io.Discard, c, int64(size)); errs <- err }()
	}
	return errors.Join(<-errs, <-errs, <-errs, <-errs)
}

// TestStagingIsGivenBack: staging memory of conns with nothing to send is given back, and there again for the next data.
func TestStagingIsGivenBack(t *testing.T) {
	t.Parallel()
	l := newLink(t, simfabric.Config{Personality: simfabric.Shm()}, Config{})
	a, b, err := l.open()
	require.NoError(t, err)
	for range 2 {
		before := l.ea.Stats().RDMABytesSent
		require.NoError(t, transfer(a, b, 16<<20))
		assert.Greater(t, l.ea.Stats().RDMABytesSent, before+8<<20)
		require.Eventually(t, func() bool {
			left := 0
			for _, e := range []*Endpoint{l.ea, l.eb} {
				locked(e, func() { left += e.core.stage.Len() })
			}
			return left == 0
		}, 20*time.Second, 50*time.Millisecond)
	}
	closeConns(t, a, b)
	l.close(t)
}

// TestSendersLeaveMemoryForRings: where endpoints share a budget too small for all that they would stage, rings still come.
func TestSendersLeaveMemoryForRings(t *testing.T) {
	budget := pool.NewBudget(96 << 20)
	var links []*link
	var conns [][2]*Conn
	for range 16 {
		l := newLink(t, simfabric.Config{Personality: simfabric.Shm()}, Config{Budget: budget})
		a, b, err := l.open()
		require.NoError(t, err)
		links, conns = append(links, l), append(conns, [2]*Conn{a, b})
	}
	t.Logf("%d MiB to begin with", budget.Stats().Used>>20)
	sent := func() (n uint64) {
		for _, l := range links {
			n += l.ea.Stats().RDMABytesSent + l.eb.Stats().RDMABytesSent
		}
		return n
	}
	const size = 8 << 20
	before, share := sent(), 0.0
	for start := time.Now(); share < 0.9 && time.Since(start) < 20*time.Second; {
		var wg sync.WaitGroup
		for _, c := range conns {
			wg.Go(func() { assert.NoError(t, transfer(c[0], c[1], size)) })
		}
		wg.Wait()
		now := sent()
		share, before = float64(now-before)/float64(2*size*len(conns)), now
		t.Logf("%.0f %% by RDMA, %d MiB in use", 100*share, budget.Stats().Used>>20)
	}
	assert.Greater(t, share, 0.9)
	for i, l := range links {
		closeConns(t, conns[i][:]...)
		l.end(t)
	}
	require.Zero(t, budget.Stats().Used)
}
