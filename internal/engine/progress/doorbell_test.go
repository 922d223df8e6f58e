package progress

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestDisarm: a sleeping peer is rung for what was posted, once, by the bell that it wants.
func TestDisarm(t *testing.T) {
	for flag, want := range map[uint32][2]bool{doorbellAwake: {}, doorbellAsleep: {true, false}, doorbellLed: {true, true}, 77: {true, false}} {
		b := newDoorbell()
		b.Peer.Store(flag)
		asleep, led := b.Disarm()
		assert.Equal(t, want, [2]bool{asleep, led}, "flag %d", flag)
		asleep, _ = b.Disarm()
		assert.False(t, asleep, "flag %d, again", flag)
	}
}
