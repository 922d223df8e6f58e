package engine

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// openAlone is an endpoint without peers.
func openAlone(t *testing.T, sim simfabric.Config) *Endpoint {
	t.Helper()
	net := simfabric.New(sim)
	e := openOn(t, net, sim.Provider, Config{Budget: pool.NewBudget(0)})
	t.Cleanup(func() {
		assert.NoError(t, e.Close())
		assert.Empty(t, net.Stats().Misuse)
	})
	return e
}

// TestSelfCheck: an endpoint checks the path to itself, and has no peers afterwards.
func TestSelfCheck(t *testing.T) {
	for _, preset := range simfabric.Presets() {
		if preset.PerPeer {
			continue
		}
		t.Run(preset.Name, func(t *testing.T) {
			e := openAlone(t, simfabric.Config{Seed: 1, Personality: preset.Personality})
			require.NoError(t, e.SelfCheck(t.Context()))
			s := e.Stats()
			assert.Zero(t, s.Peers)
			assert.Zero(t, s.PeersLost)
			assert.Zero(t, s.FramesStray)
		})
	}
}

// TestSelfCheckEnds: a self-check takes no longer than its context allows, leaves no peer behind, and succeeds later.
func TestSelfCheckEnds(t *testing.T) {
	e := openAlone(t, simfabric.Config{Seed: 1, Personality: simfabric.TCP()})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, e.SelfCheck(ctx))
	assert.Zero(t, e.Stats().Peers)
	require.NoError(t, e.SelfCheck(t.Context()), "later")
}
