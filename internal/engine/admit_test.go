package engine

import (
	"context"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// TestUnproven: a peer whose path has not been checked cannot open conns.
func TestUnproven(t *testing.T) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.TCP()})
	ends := [2]*Endpoint{openOn(t, n, "tcp;ofi_rxm", Config{}), openOn(t, n, "tcp;ofi_rxm", Config{})}
	accepted := make(chan *Conn, 1)
	a, b := introduce(t, ends[0], ends[1], func(c *Conn, _ uint32) (uint16, framing.ResetCode) {
		accepted <- c
		return anyPort, 0
	})
	ctx := context.Background()
	assert.False(t, b.Heard())
	_, err := a.Open(ctx, 1)
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "before the path check")
	assert.True(t, b.Heard())

	require.NoError(t, a.Check(ctx))
	a.Attached(Doorbell{}, Spill{})
	b.Attached(Doorbell{}, Spill{})
	c, err := a.Open(ctx, 1)
	require.NoError(t, err)
	s := <-accepted
	for range 100 {
		carry(t, c, s, 8)
	}
	assert.False(t, b.EndIdle(ErrEndpointClosed), "it has a conn")
	require.NoError(t, s.Close())
	require.NoError(t, c.Close())
	require.Eventually(t, func() bool { return b.EndIdle(ErrEndpointClosed) }, 10e9, 1e6)
	for _, e := range ends {
		require.NoError(t, e.Close())
	}
}
