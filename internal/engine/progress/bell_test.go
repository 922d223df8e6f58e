package progress

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestNudge: a queue that has run out of data rings a peer that waits to hear of that,
// once, and no other.
func TestNudge(t *testing.T) {
	for flag, rings := range map[uint32]int{bellAwake: 0, bellAsleep: 0, bellHeld: 1, bellFlying: 1} {
		t.Run(fmt.Sprint(flag), func(t *testing.T) {
			p := New(Config{Queue: &fakeQueue{reaped: func() {}}, Spin: 20 * time.Microsecond})
			bell, rung := newBell(), 0
			bell.Ring = func() { rung++ }
			p.SetBell(bell)
			bell.Peer.Store(flag)
			p.Note(Report{Work: 1}) // something of the peer's was done
			for range 2 {
				w := NewWaiter()
				w.Prepare()
				assert.False(t, p.drive(&w))
			}
			assert.Equal(t, rings, rung)
			if rings > 0 {
				assert.Zero(t, bell.Peer.Load())
			} else {
				assert.Equal(t, flag, bell.Peer.Load())
			}
		})
	}
}

// TestRouse: a peer is rung for what was posted if it sleeps, with or without operations
// in flight.
func TestRouse(t *testing.T) {
	for flag, rings := range map[uint32]bool{bellAwake: false, bellAsleep: true, bellHeld: false, bellFlying: true} {
		b := newBell()
		b.Peer.Store(flag)
		assert.Equal(t, rings, b.Rouse(), "flag %d", flag)
		assert.False(t, b.Rouse(), "flag %d, again", flag)
	}
}
