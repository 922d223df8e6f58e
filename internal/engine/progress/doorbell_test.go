package progress

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestNudge: a queue that has run out of data rings once a peer that waits to hear of that, and no
// other.
func TestNudge(t *testing.T) {
	for flag, rings := range map[uint32]int{doorbellAwake: 0, doorbellAsleep: 0, doorbellHeld: 1, doorbellFlying: 1} {
		t.Run(fmt.Sprint(flag), func(t *testing.T) {
			p := New(Config{Queue: &fakeQueue{reaped: func() {}}, Spin: 20 * time.Microsecond})
			doorbell, rung := newDoorbell(), 0
			doorbell.Ring = func() { rung++ }
			p.SetDoorbell(doorbell)
			doorbell.Peer.Store(flag)
			p.Note(Report{Work: 1}) // something of the peer's was done
			for range 2 {
				w := NewWaiter()
				w.Prepare()
				assert.False(t, p.drive(&w))
			}
			assert.Equal(t, rings, rung)
			if rings > 0 {
				assert.Zero(t, doorbell.Peer.Load())
			} else {
				assert.Equal(t, flag, doorbell.Peer.Load())
			}
		})
	}
}

// TestDisarm: a sleeping peer is rung for what was posted, with or without operations in flight.
func TestDisarm(t *testing.T) {
	for flag, rings := range map[uint32]bool{doorbellAwake: false, doorbellAsleep: true, doorbellHeld: false, doorbellFlying: true} {
		b := newDoorbell()
		b.Peer.Store(flag)
		assert.Equal(t, rings, b.Disarm(), "flag %d", flag)
		assert.False(t, b.Disarm(), "flag %d, again", flag)
	}
}
