package rdmanet_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// simulated returns a Transport over a simulated fabric. At its end the test closes it
// and checks that nothing is left behind.
func simulated(t *testing.T, p simfabric.Personality, others ...simfabric.Personality) *rdmanet.Transport {
	t.Helper()
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: p, Others: others})
	tr := rdmanet.NewTransport(n)
	rdmatest.Cleanly(t, tr)
	t.Cleanup(func() {
		require.NoError(t, tr.Close())
		s := n.Stats()
		assert.Zero(t, s.Endpoints, "endpoints")
		assert.Zero(t, s.Regions, "regions")
		assert.Zero(t, s.PeerUnmapped, "calls after a peer's memory was unmapped")
		assert.Empty(t, s.Misuse)
	})
	return tr
}

// personalities are simulated providers, among them those that need hardware. With some,
// inserting an address takes a while, since they ask the kernel for each.
var personalities = func() (list []simfabric.Personality) {
	for _, p := range simfabric.Presets() {
		if p.Inserts {
			p.InsertDelay = 2 * time.Millisecond
		}
		if p.Suite {
			list = append(list, p.Personality)
		}
	}
	return list
}()

// onEach runs a test over a simulated fabric of each kind and over each real provider.
func onEach(t *testing.T, test func(t *testing.T, tr *rdmanet.Transport, providers []string)) {
	t.Helper()
	onPersonalities(t, test)
	rdmatest.Over(t, test)
}

// onPersonalities is the simulated half of onEach, and rdmatest.Over the other half.
func onPersonalities(t *testing.T, test func(t *testing.T, tr *rdmanet.Transport, providers []string)) {
	t.Helper()
	for _, p := range personalities {
		t.Run("simulated "+p.Provider, func(t *testing.T) {
			test(t, simulated(t, p), []string{p.Provider})
		})
	}
}
