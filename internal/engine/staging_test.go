package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
)

// TestStagingIsAskedForAgain: a writer who waits for staging memory, all of which dead peers
// hold, gets some once the budget has room, even if it has refused for long.
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
		c.takeOp(txOp{peer: p, from: c.stage, slot: slot, slots: 1}) // which never completes
	}
	s, err := live.open(7)
	require.NoError(t, err)
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
		c.fail(p, ErrStuck)
	}
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
