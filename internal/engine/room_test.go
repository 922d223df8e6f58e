package engine

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// TestRoom goes through the table of Room.
func TestRoom(t *testing.T) {
	sim := simfabric.TCP()
	sim.RxDepth, sim.TxDepth = 2*LeastSlots, 16
	fab, err := simfabric.New(simfabric.Config{Personality: sim}).Open(sim.Provider, netip.Addr{})
	require.NoError(t, err)
	e, err := NewEndpoint(fab, Config{})
	require.NoError(t, err)
	var peers []*Peer
	come := func() {
		p, err := e.NewPeer(PeerConfig{})
		require.NoError(t, err)
		peers = append(peers, p)
	}
	leave := func() {
		last := len(peers) - 1
		peers[last].Lost(ErrStuck)
		peers = peers[:last]
	}
	// hold has the last peer, which is about to leave, hold n operations.
	hold := func(n int) (end func()) {
		e.enter()
		defer e.leave()
		p, tags := peers[len(peers)-1].p, []uint32{}
		for range n {
			slot, ok := e.core.tx.Get()
			require.True(t, ok)
			p.frames++
			tags = append(tags, e.core.takeOp(txOp{peer: p, from: e.core.tx, slot: slot}))
		}
		return func() {
			e.enter()
			defer e.leave()
			for _, tag := range tags {
				e.core.dispatch([]fabric.Completion{{Kind: fabric.Send, Tag: tag}})
			}
		}
	}
	look := func() {
		for range deadLooks {
			e.doChores()
		}
	}
	// slots waits until there are n send slots, and no more are to come.
	slots := func(n int) {
		t.Helper()
		assert.Eventually(t, func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.core.tx.Len() == n && e.core.sending.state == enough
		}, 10*time.Second, time.Millisecond, "%d send slots", n)
	}
	assert.Equal(t, RoomOpen, e.Room())
	come()
	assert.Equal(t, RoomOpen, e.Room())
	slots(sim.TxDepth)
	come()
	assert.Equal(t, RoomFull, e.Room())
	slots(sim.TxDepth + slotStep) // the second peer's reserve
	_, err = e.NewPeer(PeerConfig{})
	require.ErrorIs(t, err, ErrFull)
	few := hold(sim.TxDepth / 4)
	leave()
	look()
	assert.Equal(t, RoomOpen, e.Room())
	come()
	slots(sim.TxDepth + slotStep + sim.TxDepth/4) // what the dead one holds is made up for
	one := hold(1)
	leave()
	look()
	assert.Equal(t, RoomStale, e.Room())
	slots(sim.TxDepth + slotStep + sim.TxDepth/4) // that is still enough: the reserve is not needed
	assert.Equal(t, 1, e.Stats().Stale)
	one()
	look()
	assert.Equal(t, RoomOpen, e.Room())
	come()
	many := hold(slotStep + 1)
	leave()
	look()
	slots(sim.TxDepth + slotStep + 1 + sim.TxDepth/4)
	many()
	look()
	few()
	e.Avoid()
	assert.Equal(t, RoomAvoided, e.Room())
	come()
	assert.Equal(t, RoomFull, e.Room(), "which counts more")
	leave()
	assert.Equal(t, RoomAvoided, e.Room())
	require.NoError(t, e.Close())
	assert.Equal(t, RoomClosed, e.Room())
	e.Avoid()
	assert.Equal(t, RoomClosed, e.Room())
	_, err = e.NewPeer(PeerConfig{})
	require.ErrorIs(t, err, ErrEndpointClosed)
	assert.Zero(t, e.cfg.Budget.Stats().Used)
}
