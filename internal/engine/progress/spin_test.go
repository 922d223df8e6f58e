package progress

import (
	"runtime"
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

// process has some pollers, each with a leader that waits. Time stands still between calls.
type process struct {
	spins   *spinners
	places  int
	now     time.Duration
	pollers []*Poller
}

func newProcess(t *testing.T, pollers int) *process {
	o := &process{places: 2, now: roundTime}
	o.spins = &spinners{limit: func() int { return o.places }}
	for range pollers {
		p := New(Config{Queue: &fakeQueue{}, Spin: LearntTime, Clock: (*stoppedClock)(&o.now)})
		p.spins = o.spins
		p.publish()
		p.SetDoorbell(newDoorbell())
		w := NewWaiter()
		require.True(t, p.beginLead(&w))
		o.pollers = append(o.pollers, p)
	}
	return o
}

// waits has waits of the first n pollers end, after took, in which they polled in vain, until a round is over.
func (o *process) waits(n, each int, took time.Duration) {
	for range each {
		for _, p := range o.pollers[:n] {
			p.own.since, p.own.polled = o.now-took, min(took, LearntTime)
			p.learn(1)
		}
	}
	o.now += roundTime + 1
	o.pollers[0].own.since = o.now - took
	o.pollers[0].learn(1)
}

// TestCrowd: nobody polls while too many queues are in use, and nothing is learnt from that.
func TestCrowd(t *testing.T) {
	const few = 2 * crowd
	o := newProcess(t, few+1)
	p := o.pollers[0]
	o.waits(few, 1, time.Microsecond)
	assert.True(t, p.polls())
	o.waits(few+1, 1, time.Microsecond)
	assert.False(t, p.polls())
	assert.Zero(t, p.Stats().PollTime)
	misses := p.own.learner.misses
	for range 10 * epochWaits {
		o.waits(few+1, 1, 2*LearntTime)
	}
	assert.Equal(t, misses, p.own.learner.misses)
	o.places = 3 // more processors
	o.waits(few+1, 1, time.Microsecond)
	assert.True(t, p.polls())
	o.places = 2
	o.waits(few+1, 1, time.Microsecond)
	assert.False(t, p.polls())
	o.waits(1, 1, time.Microsecond)
	assert.True(t, p.polls(), "the others have left")
	o.waits(few+1, 1, time.Microsecond)
	p.own.learner.learns = false // as for a budget that is beyond learning
	assert.True(t, p.polls())
	p.own.learner.learns = true
	o.now += pauseTime // in which the many did not wait at the same time
	o.waits(few, 1, time.Microsecond)
	assert.True(t, p.polls())
	o.waits(few+1, 1, time.Microsecond)
	assert.False(t, p.polls())
	o.now = -time.Hour // a clock of testing/synctest
	o.waits(1, 1, time.Microsecond)
	assert.True(t, p.polls())
}

// TestCrowdWithoutBell: nor does anybody poll then where there is no bell yet.
func TestCrowdWithoutBell(t *testing.T) {
	q := &fakeQueue{}
	p := New(Config{Queue: q, Spin: LearntTime})
	p.spins = &spinners{limit: func() int { return 1 }}
	p.spins.last.Store(crowd + 1)
	p.publish()
	p.Start()
	defer p.Close()
	w := NewWaiter()
	w.Prepare()
	before, over := q.polls.Load(), make(chan struct{})
	go func() { defer close(over); p.Wait(&w, "test") }()
	require.Eventually(t, func() bool { return p.parks.Load() > 0 }, time.Minute, time.Millisecond)
	assert.Less(t, q.polls.Load()-before, int32(spinPolls))
	w.Signal()
	<-over
}

// TestGarbage: a process collects garbage often by its collections for each wait of all queues, in use.
func TestGarbage(t *testing.T) {
	collected := uint64(1000) // before there were queues
	o := newProcess(t, crowd)
	o.spins.cycles = func() uint64 { return collected }
	round := func(queues int, perWait float64, pause time.Duration) bool {
		o.now += pause
		o.waits(1, 1, time.Microsecond)
		const each = 4 * garbageLook
		collected += uint64(perWait * each * float64(queues))
		o.waits(queues, each, time.Microsecond)
		assert.Equal(t, o.spins.often.Load(), o.pollers[0].own.learner.wasteful)
		return o.spins.often.Load()
	}
	assert.False(t, round(1, 0, time.Hour))
	for queues := 1; queues <= crowd; queues++ {
		assert.False(t, round(queues, 0.75/garbageWaits, 0), "%d queues", queues)
		assert.True(t, round(queues, 1.25/garbageWaits, 0), "%d queues", queues)
		assert.True(t, round(queues, 0.75/garbageWaits, 0), "%d queues", queues)
		assert.False(t, round(queues, 0.4/garbageWaits, 0), "%d queues", queues)
	}
	collected += garbageLook // while nothing waited
	assert.False(t, round(1, 0.75/garbageWaits, 2*pauseTime))
	require.NotNil(t, everybody.cycles)
	cycles := newCycles()
	before := cycles()
	runtime.GC()
	assert.Greater(t, cycles(), before)
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

// TestQuietLeader: a goroutine that leads, and for which nothing comes, keeps no other from polling, and the learner is
// told of others' waits even if nobody polls.
func TestQuietLeader(t *testing.T) {
	for name, polls := range map[string]bool{"polling": true, "sleeping": false} {
		t.Run(name, func(t *testing.T) {
			q, bells := new(fakeQueue), newDoorbell()
			p := New(Config{Queue: q, Spin: LearntTime})
			p.spins = &spinners{limit: func() int { return 1 }}
			p.own.learner.polls, p.own.learner.next = polls, time.Hour // no trials
			p.publish()
			p.SetDoorbell(bells)
			p.Start()
			defer p.Close()
			quiet, busy := NewWaiter(), NewWaiter()
			q.reaped = busy.Signal
			quiet.Prepare()
			go p.Wait(&quiet, "quiet")
			defer quiet.Signal()
			require.Eventually(t, func() bool { return quiet.state.bell.Load() != nil }, time.Minute, time.Millisecond)
			waits := func() uint64 {
				s := p.Stats().Polling
				if polls {
					return s.Hits
				}
				return s.Misses
			}
			for begin := time.Now(); waits() < 100; {
				require.Less(t, time.Since(begin), time.Minute)
				busy.Prepare()
				time.AfterFunc(30*time.Microsecond, func() { q.arrived.Store(1); bells.arrived() })
				p.Wait(&busy, "busy")
			}
		})
	}
}
