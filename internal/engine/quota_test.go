package engine

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/race"
	"github.com/seed202c38ff/fabricnet/pool"
)

// crowd is an endpoint with peers of which none is really there.
type crowd struct {
	t     *testing.T
	e     *Endpoint
	peers []*Peer
}

func newCrowd(t *testing.T, p simfabric.Personality, peers int) *crowd {
	n, cfg := simfabric.New(simfabric.Config{Personality: p}), Config{Spin: -1, Budget: pool.NewBudget(64 << 20)}
	h := &crowd{t: t, e: openOn(t, n, p.Provider, cfg)}
	for range peers {
		h.come()
	}
	return h
}

func (h *crowd) come() {
	p, err := h.e.NewPeer(PeerConfig{})
	require.NoError(h.t, err)
	remote := p.Local()
	remote.Token[0]++ // its own
	require.NoError(h.t, p.Connect(h.t.Context(), remote))
	h.peers = append(h.peers, p)
}

func (h *crowd) last() *Peer { return h.peers[len(h.peers)-1] }

// leaves has the peer that came last end.
func (h *crowd) leaves(left bool) {
	if left {
		h.last().Left()
	}
	h.last().Lost(ErrStuck)
	h.peers = h.peers[:len(h.peers)-1]
}

// holdSlot has a peer hold one more send slot.
func (h *crowd) holdSlot(p *peer) uint32 {
	slot, ok := h.e.core.tx.Get()
	require.True(h.t, ok)
	p.holdSends(1, 0)
	return slot
}

// abandon forgets what is in flight, so that nothing is waited for.
func (h *crowd) abandon() {
	for _, peer := range h.peers {
		h.e.core.flying -= peer.p.flying
		peer.p.flying = 0
	}
}

// flies has the peer that came last begin an operation, and returns what completes it.
func (h *crowd) flies() (complete func()) {
	var tag uint32
	locked(h.e, func() {
		p := h.last().p
		tag = h.e.core.takeOp(txOp{peer: p, from: h.e.core.tx, slot: h.holdSlot(p)})
	})
	return func() { locked(h.e, func() { h.e.core.dispatch([]fabric.Completion{{Kind: fabric.Send, Tag: tag}}) }) }
}

// TestQuotas: an endpoint takes as many peers as it has quotas. That of a peer which has left is free once
// its operations have completed, and that of one which breaks the protocol at once. That of a peer that may live
// is not, unless its connection is closed.
func TestQuotas(t *testing.T) {
	for _, sim := range []simfabric.Personality{simfabric.TCP(), simfabric.Net()} {
		sim.RxDepth = 16
		h := newCrowd(t, sim, 0)
		for range h.e.core.most {
			h.come()
		}
		assert.False(t, h.e.Takes())
		_, err := h.e.NewPeer(PeerConfig{})
		require.ErrorIs(t, err, ErrFull)
		require.ErrorIs(t, h.e.Prepare(), ErrFull)
		assert.LessOrEqual(t, h.e.core.rx.Len(), sim.RxDepth)
		complete := h.flies()
		h.leaves(true)
		assert.False(t, h.e.Takes(), "an operation of the peer is in flight")
		complete()
		assert.True(t, h.e.Takes())
		h.come()
		locked(h.e, func() { h.last().p.doom(errProtocol) })
		assert.True(t, h.e.Takes())
		h.peers = h.peers[:len(h.peers)-1]
		h.come()
		silent := h.last()
		h.leaves(false)
		assert.Equal(t, sim.Forgets, h.e.Takes())
		silent.Left()
		assert.True(t, h.e.Takes())
		h.come()
		h.last().Quit()
		h.last().Left()
		assert.False(t, h.e.Takes(), "its address is not removed")
		require.NoError(t, h.e.Close())
		assert.False(t, h.e.Takes())
		assert.Zero(t, h.e.core.cfg.Budget.Stats().Used)
	}
}

// TestIdlePeersTakeNothing: what peers share for sending is the same with as many peers as there can be, idle or dead.
func TestIdlePeersTakeNothing(t *testing.T) {
	frames := func(peers, dead int) (n int) {
		h := newCrowd(t, simfabric.Net(), peers)
		for range dead {
			h.come()
			for range 4 * ownSends {
				h.flies()
			}
			h.leaves(false)
		}
		h.come()
		locked(h.e, func() {
			p := h.last().p
			var slots []uint32
			for p.mayWrite() {
				slots = append(slots, h.holdSlot(p))
			}
			n = len(slots)
			for _, slot := range slots {
				h.e.core.tx.Put(slot)
				p.holdSends(-1, 0)
			}
		})
		return n
	}
	alone := frames(0, 0)
	assert.GreaterOrEqual(t, frames(SharedSlots-1, 0), alone-1)
	assert.GreaterOrEqual(t, frames(16, 12), alone-1)
}

// TestHalves: the first peer that stops gets at most half of what is in common, the next half of the rest. Chunks come back.
func TestHalves(t *testing.T) {
	h := newCrowd(t, simfabric.Net(), 2)
	c := h.e.core
	slab, err := c.stage.Map(stageChunks)
	require.NoError(t, err)
	locked(h.e, func() {
		c.stage.Add(slab, stageChunks)
		chunks := c.left().StageChunks
		for name, share := range map[string]struct {
			may  func(*peer) bool
			take func(*peer)
		}{
			"send slots":     {(*peer).mayWrite, func(p *peer) { h.holdSlot(p) }},
			"operations":     {(*peer).mayFly, func(p *peer) { p.holdOps(1) }},
			"staging chunks": {(*peer).mayStage, func(p *peer) { c.stage.Get(); p.holdStage(1) }},
		} {
			var took [2]int
			for i, peer := range h.peers {
				for ; share.may(peer.p); took[i]++ {
					share.take(peer.p)
				}
			}
			assert.GreaterOrEqual(t, took[1], took[0]/2-1, name)
			assert.Greater(t, took[0], 8, name)
		}
		held := h.last().p.staged
		assert.Equal(t, chunks-h.peers[0].p.staged-held, c.left().StageChunks)
		h.last().p.doom(ErrStuck)
		c.flush()
		assert.Equal(t, chunks-h.peers[0].p.staged, c.left().StageChunks)
		h.abandon()
	})
}

// TestOperationsOfNewcomers: a peer that comes while the others have all operations in flight that they may has its own.
func TestOperationsOfNewcomers(t *testing.T) {
	for _, depth := range []int{2, 7, 8, 64, 256} {
		sim := simfabric.Net()
		sim.TxDepth = depth
		h := newCrowd(t, sim, 0)
		for range h.e.core.most {
			h.come()
			locked(h.e, func() {
				require.True(t, h.last().p.mayFly(), "%d operations, %d peers", depth, len(h.peers))
				for more := true; more; {
					more = false
					for _, peer := range h.peers {
						if peer.p.mayFly() {
							peer.p.holdOps(1)
							more = true
						}
					}
				}
				require.GreaterOrEqual(t, h.e.core.queueLeft(), 0)
			})
		}
		locked(h.e, h.abandon)
	}
}

// TestStageLine: a chunk that was kept for a writer which then cannot use it is another peer's.
func TestStageLine(t *testing.T) {
	h := newCrowd(t, simfabric.Net(), 2)
	c, a, b := h.e.core, h.peers[0].p, h.peers[1].p
	slab, err := c.stage.Map(1)
	require.NoError(t, err)
	locked(h.e, func() {
		c.stage.Add(slab, 1)
		var chunks []uint32
		for c.stage.Free() > 0 {
			chunk, _ := c.stage.Get()
			a.holdStage(1)
			chunks = append(chunks, chunk)
		}
		b.awaitStage()
		writer := &stream{p: a} // as wakeWriters leaves it
		writer.writer = writerAwake
		a.awake, c.awake = 1, 1
		a.putStage(chunks[0])
		c.flush()
		require.True(t, b.inStageLine)
		writer.woke()
		c.flush()
		assert.False(t, b.inStageLine)
		for _, chunk := range chunks[1:] {
			a.putStage(chunk)
		}
	})
	require.NoError(t, h.e.Close())
}

// TestMoreDeadThanAlive: an endpoint with more dead peers than others takes no more.
func TestMoreDeadThanAlive(t *testing.T) {
	h := newCrowd(t, simfabric.Net(), 3)
	h.leaves(false)
	assert.True(t, h.e.Takes())
	h.leaves(false)
	assert.False(t, h.e.Takes())
	assert.Equal(t, 1, h.e.Stats().Stale)
	require.NoError(t, h.e.Close())
}

// TestLastPeerLeaves: an endpoint whose last peer has left is of use, although the peer's operations have yet to
// complete. If the peer may live, it is not, until the provider or the peer has closed their connection.
func TestLastPeerLeaves(t *testing.T) {
	for _, sim := range []simfabric.Personality{simfabric.TCP(), simfabric.Net()} {
		h := newCrowd(t, sim, 1)
		complete := h.flies()
		h.leaves(true)
		assert.True(t, h.e.Takes())
		assert.Equal(t, 1, h.e.core.quotasTaken())
		complete()
		assert.Zero(t, h.e.core.quotasTaken())
		h.come()
		silent := h.last()
		complete = h.flies()
		h.leaves(false)
		assert.Equal(t, sim.Forgets, h.e.Takes())
		silent.Left()
		assert.True(t, h.e.Takes())
		complete()
		assert.Zero(t, h.e.core.quotasTaken())
	}
}

// TestDeadSendsAreMadeUp: the send slots that a dead peer holds are made up for without a newcomer.
func TestDeadSendsAreMadeUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newCrowd(t, simfabric.Net(), 2)
		free := h.e.Stats().Free.SendSlots
		for range 8 {
			h.flies()
		}
		h.leaves(false)
		synctest.Wait()
		assert.GreaterOrEqual(t, h.e.Stats().Free.SendSlots, free)
		require.NoError(t, h.e.Close())
	})
}

// TestTenThousandKills: peers die by the thousand beside one that lives. Newcomers are taken, and nothing adds up.
func TestTenThousandKills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newCrowd(t, simfabric.TCP(), 1)
		mapped := func() int64 { return h.e.core.cfg.Budget.Stats().Used }
		var early int64
		for i := range race.Fewer(10_000) {
			require.True(t, h.e.Takes(), "after %d", i)
			h.come()
			complete := h.flies()
			h.leaves(true)
			synctest.Wait() // the send slot that it holds is made up for
			complete()
			time.Sleep(2 * choreTime) // its memory is given back
			if i == 10 {
				early = mapped()
			}
		}
		assert.LessOrEqual(t, mapped(), early)
		require.NoError(t, h.e.Close())
	})
}

// TestOwn: whatever others hold, each peer can have a data frame, a control frame and operations of its own.
func TestOwn(t *testing.T) {
	for _, sim := range []simfabric.Personality{simfabric.TCP(), simfabric.Verbs()} {
		h := newCrowd(t, sim, 2)
		for range min(64, h.e.core.most) - 3 {
			h.come()
		}
		var slots []uint32
		rng := rand.New(rand.NewPCG(1, 2))
		locked(h.e, func() {
			for range 100_000 {
				p := h.e.core.order[rng.IntN(len(h.e.core.order))]
				switch rng.IntN(8) {
				case 0, 1:
					if p.mayWrite() {
						slots = append(slots, h.holdSlot(p))
						p.holdSends(-1, 1)
					}
				case 2:
					if p.pends > 0 {
						p.holdSends(1, -1)
					}
				case 3:
					require.True(t, p.frames > 0 || p.mayFrame())
					if p.mayFrame() {
						slots = append(slots, h.holdSlot(p))
					}
				case 4:
					require.True(t, p.flying >= p.c.ownOps || p.mayFly())
					if p.mayFly() {
						require.Positive(t, p.c.queueLeft())
						p.holdOps(1)
					}
				case 5:
					if p.frames > 0 {
						p.holdSends(-1, 0)
						p.c.tx.Put(slots[len(slots)-1])
						slots = slots[:len(slots)-1]
					}
				case 6:
					if p.flying > 0 && rng.IntN(4) == 0 {
						p.holdOps(-1)
					}
				}
			}
			h.abandon()
		})
	}
}
