package simfabric

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// A write that has begun to arrive goes on, whatever the target does, unless an endpoint ends.
// A write that begins to arrive later is refused.
func TestLateWrites(t *testing.T) {
	const size = 1000
	type outcome map[Place]bool // of the pieces that arrive after the change
	for name, tt := range map[string]struct {
		change   func(t *testing.T, n *Network, a, b *side)
		late     outcome
		lands    bool
		mappable bool // the memory can still be read
	}{
		"nothing": {func(*testing.T, *Network, *side, *side) {}, outcome{Registered: true}, true, true},
		"region closed": {func(t *testing.T, _ *Network, _, b *side) {
			require.NoError(t, b.landing.Deregister())
		}, outcome{Kept: true}, true, true},
		"address removed": {func(t *testing.T, _ *Network, a, b *side) {
			require.NoError(t, b.landing.Deregister())
			require.NoError(t, b.Remove(b.to))
			require.NoError(t, a.Remove(a.to))
		}, outcome{Kept: true}, true, true},
		"registered anew": {func(t *testing.T, _ *Network, _, b *side) {
			require.NoError(t, b.landing.Deregister())
			r, err := b.Register(b.landing.Bytes()[:size], pool.AccessLocal)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, r.Close()) })
		}, outcome{Reused: true}, true, true},
		"unmapped": {func(t *testing.T, _ *Network, _, b *side) {
			require.NoError(t, b.landing.Close())
		}, outcome{Unmapped: true}, false, false},
		"target ends": {func(t *testing.T, _ *Network, _, b *side) {
			require.NoError(t, b.Shutdown())
		}, outcome{}, false, true},
		"source ends": {func(t *testing.T, _ *Network, a, _ *side) {
			require.NoError(t, a.Shutdown())
		}, outcome{}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			went := 0
			for seed := range uint64(20) {
				var seen []Event
				n, a, b := pair(t, Config{Seed: seed, Delay: 6, Observe: func(ev Event) { seen = append(seen, ev) },
					Personality: Personality{LateWrites: true}})
				for i := range size {
					a.local.Bytes()[i] = byte(i) | 1
				}
				a.post(a.write(b, fabric.Write, 1, 0, size))
				for len(seen) == 0 {
					spin(b)
				}
				begun := len(seen)
				if seen[0].Len == size {
					continue // in one piece
				}
				tt.change(t, n, a, b)
				for range 50 {
					spin(a)
					spin(b)
				}
				places := outcome{}
				for _, ev := range seen[begun:] {
					places[ev.Place] = true
				}
				if begun < len(seen) || len(tt.late) == 0 {
					went++
					assert.Equal(t, tt.late, places, "seed %d", seed)
				}
				if tt.mappable {
					assert.Equal(t, tt.lands, bytes.Equal(a.local.Bytes()[:size], b.landing.Bytes()[:size]), "seed %d", seed)
				}
				s := n.Stats()
				assert.Zero(t, s.BadRemote)
				assert.Zero(t, s.InFlight)
				assert.Equal(t, []bool{places[Reused], places[Unmapped]}, []bool{s.LateReused > 0, s.LateUnmapped > 0})
			}
			assert.Greater(t, went, 10)
		})
	}
}

// spin moves the network on, if the endpoint is still open.
func spin(s *side) { _, _, _ = s.Exchange(nil, make([]fabric.Completion, 3)) }

// A write that begins to arrive after the region was closed is refused. Without LateWrites,
// so is the rest of one that has begun.
func TestRefusedWrites(t *testing.T) {
	for _, late := range []bool{false, true} {
		cut := 0
		for seed := range uint64(20) {
			n, a, b := pair(t, Config{Seed: seed, Delay: 6, Personality: Personality{LateWrites: late}})
			for i := range 2000 {
				a.local.Bytes()[i] = 1
			}
			a.post(a.write(b, fabric.Write, 1, 0, 1000))
			second := a.write(b, fabric.Write, 2, 1000, 1000)
			for range seed % 4 {
				spin(b)
			}
			require.NoError(t, b.landing.Deregister())
			a.post(second)
			a.poll(50)
			landed := bytes.Count(b.landing.Bytes()[:1000], []byte{1})
			if landed > 0 && landed < 1000 {
				cut++
			}
			assert.Zero(t, bytes.Count(b.landing.Bytes()[1000:2000], []byte{1}))
			assert.Positive(t, n.Stats().BadRemote)
		}
		assert.Equal(t, !late, cut > 0, "late %v", late)
	}
}
