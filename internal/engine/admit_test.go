package engine

import (
	"context"
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// TestUnproven: a peer whose path has not been checked gets the minimum number of receive slots,
// however many it uses, and cannot open conns.
func TestUnproven(t *testing.T) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.TCP()})
	var ends [2]*Endpoint
	for i := range ends {
		fe, err := n.Open("tcp;ofi_rxm", netip.Addr{})
		require.NoError(t, err)
		ends[i], err = NewEndpoint(fe, Config{})
		require.NoError(t, err)
	}
	accepted := make(chan *Conn, 1)
	a, err := ends[0].NewPeer(PeerConfig{})
	require.NoError(t, err)
	b, err := ends[1].NewPeer(PeerConfig{Unproven: true, Accept: func(c *Conn, _ uint32) (uint16, framing.ResetCode) {
		accepted <- c
		return anyPort, 0
	}})
	require.NoError(t, err)
	assert.EqualValues(t, framing.MinSlots, b.Local().Slots)
	ends[1].mu.Lock()
	ends[1].core.grow(b.p)
	assert.Equal(t, framing.MinSlots, b.p.share)
	ends[1].mu.Unlock()
	ctx := context.Background()
	require.NoError(t, a.Connect(ctx, b.Local()))
	require.NoError(t, b.Connect(ctx, a.Local()))
	assert.False(t, b.Heard())
	_, err = a.Open(ctx, 1)
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "before the path check")
	assert.True(t, b.Heard())

	require.NoError(t, a.Check(ctx))
	a.Attached(Doorbell{}, Spill{})
	b.Attached(Doorbell{}, Spill{})
	c, err := a.Open(ctx, 1)
	require.NoError(t, err)
	s := <-accepted
	buf := make([]byte, 8)
	for range 100 {
		_, err := c.Write(buf)
		require.NoError(t, err)
		_, err = s.Read(buf)
		require.NoError(t, err)
	}
	assert.False(t, b.EndIdle(ErrEndpointClosed), "it has a conn")
	require.NoError(t, s.Close())
	require.NoError(t, c.Close())
	require.Eventually(t, func() bool { return b.EndIdle(ErrEndpointClosed) }, 10e9, 1e6)
	for _, e := range ends {
		require.NoError(t, e.Close())
	}
}
