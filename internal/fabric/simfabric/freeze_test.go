package simfabric

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

const socket = 2000

// flood posts writes of 500 bytes from a to b and returns how many of them complete while
// only a polls.
func flood(a, b *side, writes int) (completed int) {
	for i := range writes {
		a.post(a.write(b, fabric.Write, uint32(i), 500*i, 500))
	}
	return len(tags(a.t, a.poll(200)))
}

// landed counts the bytes that have arrived of a flood of ones.
func landed(b *side) int { return bytes.Count(b.landing.Bytes(), []byte{1}) }

// A process that does not poll takes what fits into its socket. Nothing beyond that completes,
// whether completions are strong or weak, until the process polls again or ends.
func TestSocket(t *testing.T) {
	const writes = 20
	forEach := func(t *testing.T, test func(t *testing.T, n *Network, a, b *side)) {
		for _, p := range []Personality{{}, {WeakCompletion: true}, {LateWrites: true}, {Order: allOrders, WeakCompletion: true}} {
			for _, delay := range []int{0, 5} {
				for seed := range uint64(10) {
					p.Socket = socket
					n, a, b := pair(t, Config{Seed: seed, Delay: delay, Personality: p})
					copy(a.local.Bytes(), bytes.Repeat([]byte{1}, 500*writes))
					test(t, n, a, b)
				}
			}
		}
	}
	stopped := func(t *testing.T, a, b *side) (completed int) {
		completed = flood(a, b, writes)
		assert.LessOrEqual(t, completed, 1+socket/500)
		assert.LessOrEqual(t, landed(b), socket+500, "all that completed and one more")
		require.NoError(t, a.Remove(a.to))
		assert.Empty(t, a.poll(500), "not after Remove, not with an error")
		return completed
	}
	for name, frozen := range map[string]bool{"does not poll": false, "frozen": true} {
		t.Run(name, func(t *testing.T) {
			total := 0
			forEach(t, func(t *testing.T, n *Network, a, b *side) {
				if frozen {
					n.Freeze(b)
				}
				completed := stopped(t, a, b)
				total += completed
				if frozen {
					assert.Empty(t, b.poll(100))
					assert.Equal(t, n.Stats().InFlight, n.Stats().Stuck)
				} else {
					assert.Zero(t, n.Stats().Stuck)
				}
				n.Thaw(b)
				for range 100 {
					b.poll(1)
					completed += len(tags(t, a.poll(1)))
				}
				assert.Equal(t, writes, completed)
				assert.Equal(t, 500*writes, landed(b))
				assert.Zero(t, n.Stats().InFlight)
			})
			assert.Positive(t, total)
		})
	}
	t.Run("killed", func(t *testing.T) {
		forEach(t, func(t *testing.T, n *Network, a, b *side) {
			n.Freeze(b)
			completed := stopped(t, a, b)
			n.Kill(b, DeathError)
			all := a.poll(20)
			assert.Len(t, all, writes-completed)
			for _, c := range all {
				require.ErrorIs(t, c.Err, ErrCanceled)
			}
		})
	})
	t.Run("source ends", func(t *testing.T) {
		forEach(t, func(t *testing.T, n *Network, a, b *side) {
			n.Freeze(b)
			stopped(t, a, b)
			require.NoError(t, a.Shutdown())
			n.Thaw(b)
			b.poll(100)
			assert.Less(t, landed(b), 500*writes)
			assert.Zero(t, n.Stats().InFlight)
		})
	})
}

// A process that is stopped in the middle of a write goes on with it when it is thawed,
// although the target's region has been deregistered meanwhile.
func TestFrozenWriter(t *testing.T) {
	halves := 0
	for seed := range uint64(50) {
		n, a, b := pair(t, Config{Seed: seed, Personality: Personality{LateWrites: true, Socket: socket}})
		copy(a.local.Bytes(), bytes.Repeat([]byte{1}, 3000))
		a.post(a.write(b, fabric.Write, 1, 0, 3000)) // more than there is room for
		n.Freeze(a)
		b.poll(100)
		before := landed(b)
		assert.Equal(t, 1, n.Stats().Stuck)
		assert.Empty(t, a.poll(10))
		require.NoError(t, b.landing.Deregister())
		n.Thaw(a)
		b.poll(100)
		if before > 0 {
			halves++
			assert.Equal(t, 3000, landed(b), "seed %d", seed)
			assert.Positive(t, n.Stats().LateWrites)
		}
		assert.Len(t, a.poll(3), 1)
	}
	assert.Positive(t, halves)
}

// Sleeping does not keep polling for what a frozen process does not take or send.
func TestSleepForFrozen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, a, b := pair(t, Config{Seed: 1, Personality: Personality{Socket: socket}})
		n.Freeze(b)
		flood(a, b, 20)
		for _, s := range []*side{a, b} {
			start, calls := time.Now(), 0
			require.NoError(t, s.sleepFor(time.Second, func() bool { calls++; spin(s); return false }))
			assert.Equal(t, time.Second, time.Since(start))
			assert.Less(t, calls, 4)
		}
		time.AfterFunc(time.Minute, func() { n.Thaw(b) })
		start := time.Now()
		require.NoError(t, b.sleep(func() bool { spin(b); return !n.frozen(b) }))
		assert.Equal(t, time.Minute, time.Since(start))
	})
}

func (n *Network) frozen(s *side) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.endpoints[string(s.Name())].frozen
}
