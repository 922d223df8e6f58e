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

// TestRoom goes through the table.
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
	// hold has a peer that is about to leave hold so many operations.
	hold := func(n int) (end func()) {
		e.enter()
		defer e.leave()
		p, tags := peers[len(peers)-1].p, []uint32{}
		for range n {
			slot, ok := e.core.tx.Get()
			require.True(t, ok)
			p.frames++
			tags = append(tags, e.core.takeOp(txOp{peer: p, from: e.core.tx, slot: slot, slots: 1}))
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
	assert.Equal(t, RoomOpen, e.Room())
	come()
	assert.Equal(t, RoomOpen, e.Room())
	come()
	assert.Equal(t, RoomFull, e.Room())
	_, err = e.NewPeer(PeerConfig{})
	require.ErrorIs(t, err, ErrFull)
	few := hold(sim.TxDepth / 4)
	leave()
	look()
	assert.Equal(t, RoomOpen, e.Room())
	come()
	one := hold(1)
	leave()
	look()
	assert.Equal(t, RoomWorn, e.Room())
	assert.Eventually(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.core.dead.frames == sim.TxDepth/4+1 && e.core.tx.Len()-e.core.dead.frames >= sim.TxDepth
	}, 10*time.Second, time.Millisecond, "it is made up for")
	assert.Equal(t, 1, e.Stats().Worn)
	one()
	look()
	assert.Equal(t, RoomOpen, e.Room())
	few()
	e.Wear()
	assert.Equal(t, RoomStale, e.Room())
	come()
	assert.Equal(t, RoomFull, e.Room(), "which counts more")
	leave()
	assert.Equal(t, RoomStale, e.Room())
	require.NoError(t, e.Close())
	assert.Equal(t, RoomClosed, e.Room())
	e.Wear()
	assert.Equal(t, RoomClosed, e.Room())
	_, err = e.NewPeer(PeerConfig{})
	require.ErrorIs(t, err, ErrEndpointClosed)
	assert.Zero(t, e.cfg.Budget.Stats().Used)
}
