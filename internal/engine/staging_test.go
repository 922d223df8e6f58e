package engine

import (
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// TestStagingIsAskedForAgain: a writer waits for staging memory, all of which dead peers hold. It
// gets some once the budget has room, even if the budget has refused for a long time.
func TestStagingIsAskedForAgain(t *testing.T) {
	c, _ := lonelyCore(t)
	e := alone(c)
	addr, err := c.fab.Insert(c.fab.Name()) // what it sends does not matter
	require.NoError(t, err)
	join := func() *peer {
		p, err := newPeerAlone(c, [16]byte{byte(len(c.order))}, PeerConfig{})
		require.NoError(t, err)
		require.NoError(t, p.attach(&framing.Attach{Slots: 32, Eager: framing.MinEager}, addr))
		return p
	}
	live, dead := join(), []*peer{join(), join()}
	slab, err := c.stage.Map(2) // all that there was room for
	require.NoError(t, err)
	c.stage.Add(slab, 2)
	for _, p := range dead {
		slot, ok := p.takeStage()
		require.True(t, ok)
		c.takeOp(txOp{peer: p, from: c.stage, slot: slot}) // which never completes
	}
	s, err := live.open(7)
	require.NoError(t, err)
	c.flush()
	c.carryOut()
	budget := c.cfg.Budget
	hogged := budget.Stats().Limit - budget.Stats().Used
	require.NoError(t, budget.Reserve(hogged))
	s.closing, s.grant = connOpen, grantHeld
	s.outLease = &outLease{Lease: framing.Lease{Size: 1 << 20, Chunk: chunkSize}}
	require.Nil(t, s.prepareLarge(1<<20).mem)
	require.Zero(t, s.writeFrames(make([]byte, 1<<20)))
	s.conn.left = 1 << 20
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
			again = c.chores() || c.busy()
			c.carryOut()
			c.flush()
			e.mu.Unlock()
		}
	}
	look(10)
	require.Equal(t, 2, c.stage.Len(), "the budget is full")
	require.True(t, s.wr.waiting)
	budget.Release(hogged)
	look(10)
	require.False(t, s.wr.waiting, "the writer waits for ever: %d chunks, %d free", c.stage.Len(), c.stage.Free())
}

// transfer moves size bytes each way, and checks nothing but their number.
func transfer(a, b *Conn, size int) error {
	errs := make(chan error, 4)
	for _, c := range []*Conn{a, b} {
		go func() { _, err := c.Write(make([]byte, size)); errs <- err }()
		go func() { _, err := io.CopyN(io.Discard, c, int64(size)); errs <- err }()
	}
	for range 4 {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

// TestStagingIsGivenBack: staging memory of conns that have nothing to send is given back, and is
// there again for what they send next.
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
				e.enter()
				left += e.core.stage.Len()
				e.leave()
			}
			return left == 0
		}, 20*time.Second, 50*time.Millisecond)
	}
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	l.close(t)
}

// TestSendersLeaveMemoryForRings: where many endpoints share a budget that is too small for all
// that they would stage, there are still rings to write to.
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
		require.NoError(t, conns[i][0].Close())
		require.NoError(t, conns[i][1].Close())
		require.NoError(t, l.ea.Close())
		require.NoError(t, l.eb.Close())
	}
	require.Zero(t, budget.Stats().Used)
}

// TestBuffersShareStaging: while memory is short, small Buffers have no more staging memory mapped
// than writes have, and none of the budget's last eighth. They leave half of what there is to
// writes.
func TestBuffersShareStaging(t *testing.T) {
	t.Parallel()
	const limit = 64 << 20
	for name, tt := range map[string]struct{ left, chunks, lent int }{
		"plenty":    {limit * 3 / 4, stageChunks, stageChunks - keptChunks},
		"short":     {limit / 4, stageFew, stageFew / 2},
		"an eighth": {limit / 8, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			budget := pool.NewBudget(limit)
			l := newLink(t, simfabric.Config{Personality: simfabric.Shm()}, Config{Budget: budget})
			a, b, err := l.open()
			require.NoError(t, err)
			stats := budget.Stats()
			hogged := stats.Limit - stats.Used - int64(tt.left)
			require.NoError(t, budget.Reserve(hogged))
			var lent []*Buffer
			chunks := 0
			for range stageChunks {
				buf, err := a.AllocBuffer(4096)
				require.NoError(t, err)
				lent = append(lent, buf)
				if buf.chunk {
					chunks++
				}
			}
			assert.Equal(t, tt.lent, chunks)
			l.ea.enter()
			assert.Equal(t, tt.chunks, l.ea.core.stage.Len())
			l.ea.leave()
			for _, buf := range lent {
				buf.Release()
			}
			budget.Release(hogged)
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
			l.close(t)
		})
	}
}
