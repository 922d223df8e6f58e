package engine

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// crowd is an endpoint with many peers, none of which is really there.
type crowd struct{ e *Endpoint }

func newCrowd(t *testing.T, n int) *crowd {
	fab, err := simfabric.New(deepSim()).Open(simfabric.TCP().Provider, netip.Addr{})
	require.NoError(t, err)
	e, err := NewEndpoint(fab, Config{Spin: -1})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, e.Close()) })
	h := &crowd{e}
	h.join(t, n)
	return h
}

// join adds n more peers, and waits for their send slots.
func (h *crowd) join(t *testing.T, n int) {
	for range n {
		_, err := h.e.NewPeer(PeerConfig{})
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		h.e.mu.Lock()
		defer h.e.mu.Unlock()
		return h.e.core.tx.Len() >= h.e.core.most(&h.e.core.sending)
	}, 5*time.Second, time.Millisecond)
}

// takes has each peer take send slots for as long as may allows it, and counts them in n.
func takes(ps []*peer, may func(*peer) bool, n func(*peer) *int) {
	for _, p := range ps {
		for may(p) {
			_, _ = p.c.tx.Get()
			*n(p)++
		}
	}
}

func pendsOf(p *peer) *int  { return &p.pends }
func framesOf(p *peer) *int { return &p.frames }

// checkReserve has each peer that holds nothing take one send slot, which must be possible.
func (h *crowd) checkReserve(t *testing.T) {
	for i, p := range h.e.core.order {
		if p.frames+p.pends == 0 {
			require.True(t, p.mayWrite(), "peer %d of %d, %d free", i, len(h.e.core.order), h.e.core.tx.Free())
			_, _ = p.c.tx.Get()
			p.frames++
		}
	}
}

// TestReserve: whatever all peers but the last have taken, and in whatever order, each peer that
// holds no send slot gets one, whether it came before the others took theirs or after.
func TestReserve(t *testing.T) {
	for _, n := range []int{2, 8, 9, 26, 60, 64, 65, 96, 129, 200} {
		for name, take := range map[string]func(ps []*peer){
			"data that waits, and control frames": func(ps []*peer) {
				takes(ps, (*peer).mayBegin, pendsOf)
				takes(ps, (*peer).mayFrame, framesOf)
			},
			"data, and control frames": func(ps []*peer) {
				takes(ps, (*peer).mayWrite, framesOf)
				takes(ps, (*peer).mayFrame, framesOf)
			},
			"half of the peers": func(ps []*peer) { takes(ps[:len(ps)/2], (*peer).mayWrite, framesOf) },
		} {
			t.Run(fmt.Sprintf("%d peers, %s", n, name), func(t *testing.T) {
				h := newCrowd(t, n)
				h.e.mu.Lock()
				take(h.e.core.order[:n-1])
				h.e.mu.Unlock()
				h.join(t, (204-n)/4)
				h.e.mu.Lock()
				defer h.e.mu.Unlock()
				h.checkReserve(t)
			})
		}
	}
}

// TestGivesBack: a peer waits for more staging memory, and another of its writers gives back the
// peer's only chunk. The endpoint then looks at the peer.
func TestGivesBack(t *testing.T) {
	h := newCrowd(t, 2)
	h.e.mu.Lock()
	defer h.e.mu.Unlock()
	c := h.e.core
	require.NoError(t, c.stage.Grow(8))
	a, b := c.order[0], c.order[1]
	// b has stopped, and holds all chunks but one, which a's writer X has.
	slot, ok := a.takeStage()
	assert.True(t, ok)
	for c.stage.Free() > 0 { // b was there first, when there were more
		c.takeStage()
		b.staged++
	}
	// a's writer Y waits.
	assert.False(t, a.mayStage())
	c.lineUp(a, lineStage, a.staged)
	assert.True(t, a.inLine[lineMoreStage])
	c.flush()
	// X's commit fails.
	before := c.stats.steps
	a.putStage(slot)
	assert.True(t, a.mayStage(), "a may have it")
	c.flush()
	assert.NotEqual(t, before, c.stats.steps, "nobody has looked")
}

// TestSlotsForNobody: send slots are wanted for a peer that leaves before they are ordered. That is
// no refusal: slots for the next peer are ordered.
func TestSlotsForNobody(t *testing.T) {
	h := newCrowd(t, 8)
	h.e.mu.Lock()
	defer h.e.mu.Unlock()
	c := h.e.core
	p := c.newPeer([16]byte{1}, PeerConfig{}, 4, c.newLanding([16]byte{1}))
	require.Equal(t, wanted, c.sending.state)
	p.doom(errGoodbye)
	c.flush()
	for o := c.nextOrder(); o != nil; o = c.nextOrder() {
		o.carryOut(c)
		c.supplied(o)
	}
	assert.NotEqual(t, refused, c.sending.state, "nothing was refused")
	c.newPeer([16]byte{2}, PeerConfig{}, 4, c.newLanding([16]byte{2}))
	assert.True(t, c.hasOrders(), "slots for the ninth peer are asked for")
}
