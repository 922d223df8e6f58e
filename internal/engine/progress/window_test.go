package progress

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// handClock is a clock with one timer, which a test lets expire.
type handClock struct {
	now  time.Duration
	in   time.Duration // when the timer expires; 0: it is not set
	tick func()
}

func (c *handClock) Now() time.Duration                    { return c.now }
func (c *handClock) AfterFunc(time.Duration, func()) Timer { return c }
func (c *handClock) Reset(d time.Duration) (was bool)      { was, c.in = c.in > 0, d; return was }
func (c *handClock) Stop() (was bool)                      { was, c.in = c.in > 0, 0; return was }
func (c *handClock) expire()                               { c.now += c.in; c.in = 0; c.tick() }

// stepper is a scheduler that calls f at the next step.
type stepper struct{ f func() }

func (s *stepper) step() {
	if f := s.f; f != nil {
		s.f = nil
		f()
	}
}

func (s *stepper) block(until func() bool) { panic("nobody to wait for") }
func (s *stepper) spawn(f func())          {}

// atRest returns a Poller of a quiet queue, with a peer or without, whose timer is off, or set to look rarely.
func atRest(cfg Config, peer bool) (*Poller, *handClock, *stepper) {
	c, s := new(handClock), new(stepper)
	cfg.Queue, cfg.Clock, cfg.Spin = new(fakeQueue), c, -1
	p := New(cfg)
	p.timer.Timer, c.tick, p.sched.model = c, p.tick, s
	if peer {
		p.Join()
		p.Joined()
	}
	p.kick(PollEvery)
	for i := 0; i < 10*pollsEach && c.in > 0; i++ {
		c.expire()
	}
	return p, c, s
}

// posted reports an operation in flight, as the endpoint does.
func posted(p *Poller, _ *handClock) {
	if p.Note(Report{Flying: true, Work: 1}) {
		p.Kick()
	}
}

// TestLeavingForgetsNothing: what comes to pass while an owner leaves, once it has found that the timer need not
// look, has the timer look all the same.
func TestLeavingForgetsNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		cfg     Config
		peer    bool
		happens func(p *Poller, c *handClock)
		most    time.Duration
	}{
		"wait object, posted":   {Config{Waiter: newFD()}, true, posted, quietLook},
		"wait object, stirred":  {Config{Waiter: newFD()}, true, func(p *Poller, c *handClock) { p.Stir(); c.expire() }, PollEvery},
		"nothing, a peer joins": {Config{}, false, func(p *Poller, c *handClock) { p.Join(); c.expire() }, PollEvery},
		"nothing, posted":       {Config{}, false, posted, PollEvery},
	} {
		t.Run(name, func(t *testing.T) {
			p, c, s := atRest(tt.cfg, tt.peer)
			require.Zero(t, c.in, "it rests")
			require.True(t, p.Acquire())
			p.pollAll()
			looked := 0
			s.f = func() { // leave's first step
				looked++
				tt.happens(p, c)
			}
			p.leaveArmed()
			require.Equal(t, 1, looked)
			assert.Positive(t, c.in)
			assert.LessOrEqual(t, c.in, tt.most)
		})
	}
}

// TestFailedWaitObject: once the wait object has failed, the timer looks as without one.
func TestFailedWaitObject(t *testing.T) {
	p, c, s := atRest(Config{Waiter: newFD()}, true)
	p.fail()
	for range 10 * pollsEach {
		c.expire()
	}
	assert.Equal(t, PollIdle, c.in)
	s.f = p.Look // once tick has begun
	c.expire()
	assert.Equal(t, PollIdle, c.in)
	posted(p, c)
	assert.Equal(t, PollEvery, c.in)
}

// TestLearnerIsToldOfWaits: the learner is not told of path checks, nor of what came after a leader's deadline.
func TestLearnerIsToldOfWaits(t *testing.T) {
	for name, deadline := range map[string]bool{"path check": false, "deadline": true} {
		t.Run(name, func(t *testing.T) {
			q, bells := new(fakeQueue), newDoorbell()
			p := New(Config{Queue: q, Spin: 100 * time.Microsecond})
			p.SetDoorbell(bells)
			p.Start()
			defer p.Close()
			wait := func(w *Waiter, end func()) {
				w.Prepare()
				ended := make(chan struct{})
				go func() { defer close(ended); p.Wait(w, "test") }()
				require.Eventually(t, func() bool { return w.state.bell.Load() != nil }, time.Minute, 10*time.Microsecond)
				end()
				<-ended
			}
			arrive := func() { q.arrived.Store(1); bells.arrived() }
			join := NewJoinWaiter()
			q.reaped = join.Signal
			if deadline {
				w := NewWaiter()
				wait(&w, w.Signal)
				arrive() // nobody waits
				require.Eventually(t, func() bool { return q.arrived.Load() == 0 }, time.Minute, 10*time.Microsecond)
			}
			wait(&join, arrive)
			require.True(t, p.take(nil))
			assert.Zero(t, p.own.learner.hits+p.own.learner.misses)
			p.arm()
		})
	}
}
