package progress

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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

// TestLeaderGoesWhileArmed: whenever a leader goes while an owner arms the queue, the flag does not say led
// afterwards, and an arrival that has rung the leader's bell is not left there.
func TestLeaderGoesWhileArmed(t *testing.T) {
	for at := 1; at <= 5; at++ {
		for arrives := at; arrives <= 6; arrives++ { // after the sixth step: not at all
			q, b, w, steps := new(fakeQueue), newDoorbell(), NewWaiter(), new(stepper)
			p := New(Config{Queue: q, Spin: -1})
			p.timer.Timer, p.sched.model = new(handClock), steps
			p.SetDoorbell(b)
			require.True(t, p.beginLead(&w))
			require.True(t, p.Acquire())
			step, rungLeader := 0, false
			var count func()
			count = func() {
				step++
				if step == at {
					p.abdicate(&w)
				}
				if step == arrives {
					q.arrived.Store(1)
					rungLeader = b.Own.Load() == doorbellLed
					b.arrived()
				}
				steps.f = count
			}
			steps.f = count
			p.arm()
			require.GreaterOrEqual(t, step, at, "steps")
			assert.NotEqual(t, uint32(doorbellLed), b.Own.Load(), "it goes at step %d, and something arrives at %d", at, arrives)
			assert.False(t, rungLeader && q.arrived.Load() > 0, "it goes at step %d, and something arrives at %d", at, arrives)
		}
	}
}
