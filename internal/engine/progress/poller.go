package progress

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/metrics"
)

// state is the queue's state: see doc.go. From owned on, the queue belongs to somebody.
type state int32

const (
	idle state = iota
	armed
	owned
	driven
	retired
)

var stateNames = [...]string{"idle", "armed", "owned", "driven", "retired"}

func (s state) String() string { return stateNames[s] }

// taken reports whether somebody owns the queue, and will see to it when leaving.
func (s state) taken() bool { return s >= owned }

const (
	// tickAfter is how long after an owner has left the timer first looks after the queue.
	tickAfter = 200 * time.Microsecond
	// busyTick is the time between further looks while somebody keeps coming back. Looks are rare
	// because each wakes a thread of Go's runtime that has nothing else to do. A queue that is then
	// abandoned is armed by the first look that finds no visit since the one before: after two at most.
	busyTick = time.Millisecond
	// restFor is how long a sleeper that has begun to rest is left alone when the queue is armed
	// again. It looks often by itself after something has happened, and then less and less often.
	restFor = time.Millisecond
	// spinPolls is how many polls a goroutine makes at least before Config.Spin counts as used up
	// (proportionally fewer for a smaller budget). Where a call takes microseconds, as in an emulated
	// machine, they take longer than that, but so does the wake-up that polling is meant to save.
	spinPolls = 200
	// clockEach is how many polls there are for each look at the clock.
	clockEach = 8
)

// Queue is a completion queue, along with what dispatches its completions.
type Queue interface {
	// Poll reaps once and dispatches what it found. With retry it offers the fabric again what the
	// fabric has refused, even if there was nothing to reap. Only the owner calls it.
	Poll(retry bool) Found
}

// Found is what a poll has found.
type Found struct {
	Completions int
	Heartbeats  int    // how many of these were heartbeats, for which nobody waits
	Moved       uint64 // bytes sent and received so far, in total; 0 without completions
}

// Clock is where the time comes from.
type Clock interface {
	Now() time.Duration // since some time in the past
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is what time.AfterFunc returns.
type Timer interface {
	Reset(d time.Duration) bool
	Stop() bool
}

type realClock struct{}

// origin is the zero of real times. time.Since reads one clock where time.Now reads two.
var origin = time.Now()

func (realClock) Now() time.Duration                        { return time.Since(origin) }
func (realClock) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }

// Config says how a Poller is made.
type Config struct {
	Queue   Queue
	Waiter  fabric.Waiter  // nil: there are doorbells, or only the timer
	Rescuer fabric.Rescuer // nil: the provider's calls do not hang
	// Spin is how long a waiting goroutine polls before it parks, at most: see learner. If it is
	// 0 or less, no goroutine polls while it waits.
	Spin time.Duration
	// Ticks says that the wait fd does not announce everything, so the sleeper has to look now and
	// then for as long as the queue is open.
	Ticks bool
	Clock Clock // nil: the real one
}

// Poller decides who polls one queue. All methods may be called concurrently, unless they
// say otherwise.
type Poller struct {
	queue   Queue
	waiter  fabric.Waiter
	rescuer fabric.Rescuer
	spin    time.Duration
	clock   Clock
	ticks   bool

	// state is moved by whoever finds it free, and from then on by the owner: see the table in doc.go.
	state  atomic.Int32
	visits atomic.Uint32 // how often the queue has been acquired

	own owner

	// Written by the functions named, read by all.
	report    atomic.Uint64            // Note: the last Report, as a word
	budget    atomic.Int64             // publish: for how long a wait polls
	learnt    learnt                   // publish: what the learner has counted
	doorbell  atomic.Pointer[Doorbell] // SetDoorbell: the one peer's, where there is no wait fd
	doorbells atomic.Uint64            // Doorbell: how often it has rung
	peers     atomic.Int32             // Join, Left: how many peers may send something
	joining   atomic.Int32             // Join, Joined: how many are coming up, and have no doorbell yet
	stirs     atomic.Uint32            // Join, Stir: how often somebody said that more is to come
	expected  atomic.Bool              // Expect: the background goroutine has to poll
	drivers   atomic.Int32             // drive: how many goroutines wait and want to poll
	parks     atomic.Uint64            // Wait: how often a goroutine has parked
	polled    atomic.Uint64            // arm, leavePoll: own.polls when the queue was armed last
	queued    atomic.Int32             // awaitTurn: how many goroutines wait for the owner to leave
	lent      atomic.Uint32            // lend, takeSpin: the permission to spin that a driver may take over; 0: none
	lends     atomic.Uint32            // lend: how often it has been called
	seen      atomic.Uint32            // tick: visits when it last ran
	looked    atomic.Uint32            // Look: visits when it last did something
	lookedAt  atomic.Int64             // Look: when it last did something, by clock
	glances   atomic.Bool              // Look: the sleeper was woken just to look once

	turn  chan struct{} // wakes one of the goroutines that are queued
	timer timer

	resting atomic.Bool   // the sleeper sleeps on the wait fd, or will look again before it does
	deep    atomic.Bool   // and it will not look by itself any more
	park    chan struct{} // wakes the background goroutine
	sleeper sleeper

	over atomic.Bool   // the queue is retired, or about to be
	done chan struct{} // closed by Close
	gone chan struct{} // closed when the background goroutine has ended

	spins *spinners
	least int // spinPolls, except in the model test
	sched sched
	moves func(from, to state) // called for each transition in tests, nil otherwise
}

// owner is what belongs to whoever owns the queue.
type owner struct {
	polls    uint64
	news     bool // the last poll found more than heartbeats
	learner  learner
	since    time.Duration // since when a goroutine has waited, perhaps in vain, for what has not come yet; 0: none has
	polling  time.Duration // how long goroutines that wait have polled since then
	denied   bool          // one would have polled, but too many others did
	spinning time.Duration // when the polling that is going on began; 0: none is
	rude     time.Duration // until when no thread makes way for others: see yield
	late     uint8         // which of the last eight turns given away came back late, a bit for each
	rested   time.Duration // when the sleeper began to rest, as of its last look that found nothing
	restedAt uint64        // polls at that look
	quiet    int           // polls in a row while nothing came or went: see pollLater
	work     uint64        // posted and reaped, at the last pollLater that found a change
	stirs    uint32        // Poller.stirs, likewise
}

// learnt is what Stats has of the learner, for goroutines that do not own the queue.
type learnt struct{ hits, misses, trials, changes atomic.Uint64 }

// New returns a Poller for a queue that nobody polls yet. It has neither goroutines nor
// timers before Start is called.
func New(cfg Config) *Poller {
	p := &Poller{
		queue: cfg.Queue, waiter: cfg.Waiter, rescuer: cfg.Rescuer, spin: cfg.Spin, clock: cfg.Clock, ticks: cfg.Ticks,
		own: owner{learner: newLearner(cfg.Spin, origin, rand.Uint64())}, turn: make(chan struct{}, 1), park: make(chan struct{}, 1),
		done: make(chan struct{}), gone: make(chan struct{}), spins: everybody, least: spinPolls,
	}
	if p.clock == nil {
		p.clock = realClock{}
	}
	p.sleeper.looks = p.look
	p.publish()
	return p
}

// Start starts the timer and the background goroutine, which see to it that the queue is polled.
func (p *Poller) Start() {
	p.timer.Timer = p.clock.AfterFunc(time.Hour, p.tick)
	p.sched.spawn(p.background)
	p.kick(PollEvery)
}

func (p *Poller) String() string {
	return fmt.Sprintf("%v, timer %v", p.now(), p.timer.is())
}

// now is the state.
func (p *Poller) now() state { return state(p.state.Load()) }

// leave is called by the owner, to give up ownership, or to say that it will stay (driven).
func (p *Poller) leave(to state) {
	p.sched.step()
	if from := p.state.Swap(int32(to)); p.moves != nil {
		p.moves(state(from), to)
	}
	if to != driven {
		p.pass() // the swap was the fence before this looks for goroutines that are queued
	}
	p.sched.step()
}

// move is for goroutines that do not own the queue.
func (p *Poller) move(from, to state) bool {
	done := p.state.CompareAndSwap(int32(from), int32(to))
	if done && p.moves != nil {
		p.moves(from, to)
	}
	return done
}

// Acquire makes the caller the owner, unless there is one already.
func (p *Poller) Acquire() bool {
	for {
		s := p.now()
		if s.taken() {
			return false
		}
		p.sched.step()
		if p.move(s, owned) {
			p.visits.Add(1)
			if s == armed {
				p.awake()
			}
			return true
		}
	}
}

// Release gives up ownership, for what is hoped to be a short time.
func (p *Poller) Release() {
	p.leave(idle)
	p.kick(tickAfter)
}

// Poll reaps once and dispatches. Only the owner calls it.
func (p *Poller) Poll() int {
	p.own.polls++
	f := p.queue.Poll(p.has(refused))
	if p.own.news = f.Completions > f.Heartbeats; p.own.news {
		p.learn(f.Moved)
	}
	return f.Completions
}

// Polls is how often the queue has been polled. Only Queue.Poll may call it.
func (p *Poller) Polls() uint64 { return p.own.polls }

// waits notes that a goroutine begins to wait, now.
func (p *Poller) waits(now time.Duration) {
	if p.own.since == 0 {
		p.own.since = now
	}
}

// learn notes how long something took to arrive after somebody began to wait, whichever
// goroutine it is for: with many conns each of them waits for long, and polling pays for
// all of them.
func (p *Poller) learn(moved uint64) {
	since := p.own.since
	if since == 0 {
		return
	}
	p.own.since = 0
	now := p.clock.Now()
	hit := p.own.spinning > 0
	p.stopSpin(now)
	if !p.own.denied && p.own.learner.waited(now, now-since, p.own.polling, hit, moved) {
		p.publish()
	}
	p.own.polling = 0
}

// stopSpin adds up how long a goroutine that waits has polled.
func (p *Poller) stopSpin(now time.Duration) {
	if o := &p.own; o.spinning > 0 {
		o.polling += now - o.spinning
		o.spinning = 0
	}
}

// publish makes what was learnt visible to goroutines that do not own the queue.
func (p *Poller) publish() {
	l := &p.own.learner
	p.budget.Store(int64(l.budget()))
	p.learnt.hits.Store(l.hits)
	p.learnt.misses.Store(l.misses)
	p.learnt.trials.Store(l.tries)
	p.learnt.changes.Store(l.changes)
}

// polls reports whether a goroutine that waits polls before it parks.
func (p *Poller) polls() bool { return p.budget.Load() > 0 && p.spins.limit() > 0 }

// inVain reports whether polling, i times since start, has used up the budget.
func (p *Poller) inVain(i int, start, budget time.Duration) bool {
	return i%clockEach == 0 && i >= int(int64(p.least)*int64(min(budget, p.spin))/int64(p.spin)) && p.clock.Now()-start > budget
}

// Stats is what a Poller has counted so far.
type Stats struct {
	Polls     uint64        // up to when the queue was last armed
	Parks     uint64        // waits that ended up blocking
	Doorbells uint64        // that the peer has rung
	PollTime  time.Duration // how long a wait polls at the moment; 0 if it may not poll
	Polling   metrics.Polling
}

// Stats returns a snapshot of the counters.
func (p *Poller) Stats() Stats {
	l := &p.learnt
	s := Stats{
		Polls: p.polled.Load(), Parks: p.parks.Load(), Doorbells: p.doorbells.Load(),
		Polling: metrics.Polling{Hits: l.hits.Load(), Misses: l.misses.Load(), Trials: l.trials.Load(), Changes: l.changes.Load()},
	}
	if p.polls() {
		s.PollTime = time.Duration(p.budget.Load())
	}
	return s
}

// Closing reports whether polling is to end: Close or Retire has been called.
func (p *Poller) Closing() bool { return p.over.Load() }

// Close ends the background goroutine and the timer, and retires the queue. It may be called
// only once, after Start.
func (p *Poller) Close() {
	p.over.Store(true)
	close(p.done)
	if p.waiter != nil {
		p.waiter.Wake()
	}
	p.sched.await(p.gone, nil)
	p.Retire()
	p.timer.Stop()
}
