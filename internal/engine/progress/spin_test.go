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

// stoppedClock shows the same time until it is set.
type stoppedClock time.Duration

func (c *stoppedClock) Now() time.Duration                  { return time.Duration(*c) }
func (*stoppedClock) AfterFunc(time.Duration, func()) Timer { panic("no timers") }

// TestCrowd: nobody polls while too many queues are waited on in turn, and nothing is learnt from that.
func TestCrowd(t *testing.T) {
	s := &spinners{limit: func() int { return 2 }}
	counted := make([]uint32, 2*crowd+1)
	now := roundTime
	round := func(queues int) {
		for i := range 3 * queues { // each counts once
			s.count(&counted[i%queues])
		}
		s.turn(now) // too early
		now += roundTime + 1
		s.turn(now)
	}
	p := New(Config{Queue: &fakeQueue{}, Spin: LearntTime, Clock: (*stoppedClock)(&now)})
	p.spins = s
	p.publish()
	p.SetDoorbell(newDoorbell())
	for _, c := range []struct {
		queues int
		polls  bool
	}{{2 * crowd, true}, {2*crowd + 1, false}, {1, true}} {
		round(c.queues)
		assert.Equal(t, c.polls, p.polls(), "%d queues", c.queues)
		assert.Equal(t, c.polls, p.Stats().PollTime > 0, "%d queues", c.queues)
	}
	round(len(counted))
	w := NewWaiter()
	require.True(t, p.beginLead(&w))
	for range 10 * epochWaits { // these waits were in vain
		p.own.since, p.own.polled = p.clock.Now()-2*LearntTime, LearntTime
		p.learn(1)
	}
	round(1)
	assert.True(t, p.polls())
	assert.Zero(t, p.own.learner.misses)
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
