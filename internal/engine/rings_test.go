package engine

import (
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// flood has a write to b without a pause, until stop.
func flood(t *testing.T, a, b *Conn) (stop func()) {
	var wg sync.WaitGroup
	var over atomic.Bool
	wg.Go(func() {
		for !over.Load() && assert.NoError(t, writeN(a, 128<<10)) {
		}
		assert.NoError(t, a.Close())
	})
	wg.Go(func() {
		_, err := io.Copy(io.Discard, b)
		assert.NoError(t, err)
		assert.NoError(t, b.Close())
	})
	return func() {
		over.Store(true)
		wg.Wait()
	}
}

// hasRing waits until large data comes to a conn by way of a ring.
func hasRing(t *testing.T, c *Conn, what string) {
	t.Helper()
	before := c.Seen().LargeIn
	require.Eventually(t, func() bool { return c.Seen().LargeIn > before }, 20*time.Second, 10*time.Millisecond, what)
}

// TestRingsForAll: where all memory is in rings that are used without a pause, another conn still
// gets one, on the same endpoint or on another that shares the budget.
func TestRingsForAll(t *testing.T) {
	for _, name := range []string{"a peer more", "an endpoint more"} {
		t.Run(name, func(t *testing.T) {
			const busy = 4
			budget := pool.NewBudget(64 << 20)
			sim := simfabric.Config{Seed: 1, Personality: simfabric.TCP()}
			s := newBudgetStar(t, sim, Config{Budget: budget}, busy+1)
			other, last := s, busy
			if name == "an endpoint more" {
				other, last = newBudgetStar(t, sim, Config{Budget: budget}, 1), 0
			}
			a, b := other.dial(t, last)
			var stops []func()
			for i := range busy {
				c, d := s.dial(t, i)
				stops = append(stops, flood(t, c, d))
				hasRing(t, d, "one of those that are busy")
			}
			hogged := budget.Stats().Limit*7/8 - budget.Stats().Used
			require.NoError(t, budget.Reserve(hogged))
			stops = append(stops, flood(t, a, b))
			hasRing(t, b, "the conn that came last")
			for _, stop := range stops {
				stop()
			}
			budget.Release(hogged)
			// The budget is empty only once both are closed.
			for _, x := range []*star{s, other} {
				for _, e := range append(x.spokes, x.hub) {
					require.NoError(t, e.Close())
				}
			}
			assert.Zero(t, budget.Stats().Used)
		})
	}
}
