package progress

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPollsWhereCallsAreSlow, as in an emulated machine: a goroutine polls a number of
// times, however long that takes.
func TestPollsWhereCallsAreSlow(t *testing.T) {
	q := &fakeQueue{slow: 10 * time.Microsecond}
	p := New(Config{Queue: q, Spin: 200 * time.Microsecond})
	p.SetBell(newBell())
	p.own.learner.arm = arms - 1
	p.publish()
	p.Start()
	defer p.Close()
	w := NewWaiter()
	polls := func() int32 {
		require.Eventually(t, func() bool { return Spinners() == 0 }, time.Minute, time.Millisecond)
		before, parks, ended := q.polls.Load(), p.parks.Load(), make(chan struct{})
		w.Prepare()
		go func() {
			p.Wait(&w, "test")
			close(ended)
		}()
		require.Eventually(t, func() bool { return p.parks.Load() > parks }, time.Minute, time.Millisecond)
		n := q.polls.Load() - before
		w.Signal()
		<-ended
		return n
	}
	var most int32
	for i := 0; i < 50 && most < spinPolls; i++ {
		most = max(most, polls())
	}
	assert.GreaterOrEqual(t, most, int32(spinPolls))
}

// TestSleeperIsWokenForWhatWasRefused: only polling offers it to the fabric again.
func TestSleeperIsWokenForWhatWasRefused(t *testing.T) {
	fd := newFD()
	p := New(Config{Queue: new(fakeQueue), Waiter: fd, Spin: -1})
	p.Start()
	defer p.Close()
	for _, isRefused := range []bool{false, true} {
		require.Eventually(t, func() bool { // somebody parks right after the sleeper has
			if !p.resting.Load() || !p.Acquire() {
				return false
			}
			p.own.rested, p.own.restedAt = p.clock.Now(), p.own.polls
			p.Note(Report{Refused: isRefused})
			before, resting := fd.wakes.Load(), p.resting.Load()
			p.arm()
			return resting && (fd.wakes.Load() > before) == isRefused
		}, 10*time.Second, time.Millisecond)
	}
}
