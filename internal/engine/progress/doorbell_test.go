package progress

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestDisarm: a sleeping peer is rung for what was posted, once.
func TestDisarm(t *testing.T) {
	for flag, rings := range map[uint32]bool{doorbellAwake: false, doorbellAsleep: true} {
		b := newDoorbell()
		b.Peer.Store(flag)
		assert.Equal(t, rings, b.Disarm(), "flag %d", flag)
		assert.False(t, b.Disarm(), "flag %d, again", flag)
	}
}
