package progress

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// TestPollsWhereCallsAreSlow: where calls are slow, as in an emulated machine, a goroutine polls a
// number of times, however long that takes.
func TestPollsWhereCallsAreSlow(t *testing.T) {
	q := &fakeQueue{slow: 10 * time.Microsecond}
	p := New(Config{Queue: q, Spin: 200 * time.Microsecond})
	p.SetDoorbell(newDoorbell())
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

// TestExpect: while a peer comes up that is about to send something, the background goroutine polls
// for it longer than for others, unless polling is switched off.
func TestExpect(t *testing.T) {
	for name, tt := range map[string]struct {
		waiter fabric.Waiter
		spin   time.Duration
		least  int32
	}{
		"nothing to wait on":           {nil, LearntTime, 2 * spinPolls},
		"a wait fd":                    {newFD(), LearntTime, 2 * spinPolls},
		"nothing to wait on, no spins": {nil, -1, 0},
		"a wait fd, no spins":          {newFD(), -1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			q := &fakeQueue{slow: 2 * time.Microsecond}
			p := New(Config{Queue: q, Waiter: tt.waiter, Spin: tt.spin})
			p.Start()
			defer p.Close()
			p.Join()
			defer p.Joined()
			if tt.least > 0 {
				require.Eventually(t, func() bool {
					before := q.polls.Load()
					p.Expect()
					time.Sleep(joinTime)
					return q.polls.Load()-before > tt.least
				}, 10*time.Second, time.Millisecond)
				return
			}
			before := q.polls.Load()
			p.Expect()
			time.Sleep(5 * joinTime)
			assert.Less(t, q.polls.Load()-before, int32(spinPolls))
		})
	}
}

// handClock moves on by away once, after it was looked at.
type handClock struct {
	realClock
	now, away time.Duration
	looks     int
}

func (c *handClock) Now() time.Duration {
	now := c.now
	c.now, c.away = c.now+c.away, 0
	c.looks++
	return now
}

// TestYieldsToWhoStops: a turn that is given away and comes back late is no sign of a program that
// computes all the time, unless another of the last eight turns came back late, too.
func TestYieldsToWhoStops(t *testing.T) {
	clock := &handClock{now: time.Second}
	p := New(Config{Queue: new(fakeQueue), Spin: LearntTime, Clock: clock})
	yields := func(away time.Duration) (did bool) {
		clock.away, clock.looks = away, 0
		p.yield(politePolls)
		return clock.looks == 2
	}
	require.Zero(t, politePolls%clockEach)
	assert.True(t, yields(2*computes))
	for range 8 {
		assert.True(t, yields(computes/2))
	}
	assert.True(t, yields(2*computes))
	assert.True(t, yields(computes/2))
	clock.now += time.Hour
	assert.True(t, yields(2*computes), "the second one")
	assert.False(t, yields(2*computes), "a program computes")
	clock.now += rudeShare * 2 * computes
	assert.True(t, yields(computes/2), "it may have ended")
}

// TestSleeperIsWokenForWhatWasRefused: the sleeper is woken for what the fabric has refused, since
// only polling offers it again.
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
