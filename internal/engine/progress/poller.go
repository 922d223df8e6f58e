package progress

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// state is the queue's. From owned on it belongs to somebody.
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

// taken reports that somebody owns the queue, and sees to it when leaving.
func (s state) taken() bool { return s >= owned }

const (
	// tickAfter is when a queue that was left is looked after first.
	tickAfter = 200 * time.Microsecond
	// busyTick is how often it is while somebody comes back all the time: each look wakes
	// a thread of Go's runtime that has nothing else to do. Abandoned after that, it is
	// armed once a look finds that nobody has come since the last: in two of them at most.
	busyTick = time.Millisecond
	// restFor is for how long the sleeper is left alone: it looks often after something
	// has happened, and then less and less.
	restFor = time.Millisecond
	// spinPolls is how often a goroutine polls at least before Config.Spin is over. Where a
	// call takes microseconds, as in an emulated machine, these take longer, and so does
	// waking up, which polling is to save.
	spinPolls = 200
	// clockEach is in how many polls the clock is looked at.
	clockEach = 8
)

// Queue is a completion queue and what becomes of completions.
type Queue interface {
	// Poll reaps once and dispatches what that found. With retry the fabric is offered again
	// what it has refused, even if there was nothing. Only the owner calls it.
	Poll(retry bool) Found
}

// Found is what a poll has found.
type Found struct {
	Completions int
	Heartbeats  int    // of these, for which nobody waits
	Moved       uint64 // bytes that have gone and come so far; 0 without completions
}

// Clock is where the time comes from.
type Clock interface {
	Now() time.Duration // since some time in the past
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is a time.Timer of AfterFunc.
type Timer interface {
	Reset(d time.Duration) bool
	Stop() bool
}

type realClock struct{}

// origin is what real times are counted from: time.Since reads one clock, time.Now two.
var origin = time.Now()

func (realClock) Now() time.Duration                        { return time.Since(origin) }
func (realClock) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }

// Config is what a Poller is made of.
type Config struct {
	Queue   Queue
	Waiter  fabric.Waiter  // nil: doorbells, or the timer
	Rescuer fabric.Rescuer // nil: the provider's calls return
	// Spin is how long a goroutine that waits polls before it parks, at most: see learner.
	// With 0 or less nobody does.
	Spin time.Duration
	// Ticks: the wait fd does not tell all, so the sleeper looks now and then for as long
	// as the queue is open.
	Ticks bool
	Clock Clock // nil: the real one
}

// Poller decides who polls one queue. All methods may be called concurrently, but for
// those that say otherwise.
type Poller struct {
	queue   Queue
	waiter  fabric.Waiter
	rescuer fabric.Rescuer
	spin    time.Duration
	clock   Clock
	ticks   bool

	// state is moved by whoever finds it free, and then by the owner: see the table.
	state  atomic.Int32
	visits atomic.Uint32 // how often the queue was acquired

	own owner

	// Written by those named, read by all.
	report    atomic.Uint64            // Note: see there
	budget    atomic.Int64             // Poll: the learner's
	learnt    learnt                   // Poll: the learner's
	doorbell  atomic.Pointer[Doorbell] // SetDoorbell: of the one peer, where there is nothing to wait on
	doorbells atomic.Uint64            // Doorbell: how often it was heard
	peers     atomic.Int32             // Join, Left: peers that may send something
	joining   atomic.Int32             // Join, Joined: those that come up, whose doorbell is not there yet
	stirs     atomic.Uint32            // Stir: how often somebody said that more is to come
	expected  atomic.Bool              // Expect: the background goroutine is to poll
	drivers   atomic.Int32             // drive: goroutines that wait and want to poll
	parks     atomic.Uint64            // Wait: how often one of them parked
	polled    atomic.Uint64            // arm: own.polls, as of then
	queued    atomic.Int32             // awaitTurn: those who wait for the owner to leave
	lent      atomic.Uint32            // lend, takeSpin: which leave to spin of one that polls for others a driver may have
	lends     atomic.Uint32            // lend: how often it was called
	seen      atomic.Uint32            // tick: visits, as of then
	looked    atomic.Uint32            // Look: visits, as of then
	lookedAt  atomic.Int64             // Look: when it did something last, since origin
	glances   atomic.Bool              // Look: the sleeper was woken for one look

	turn  chan struct{} // wakes one of those who are queued
	timer timer

	resting atomic.Bool   // the sleeper sleeps on the wait fd, or looks again before it does
	deep    atomic.Bool   // and is not going to look by itself any more
	park    chan struct{} // wakes the background goroutine
	sleeper sleeper

	over atomic.Bool   // retired, or about to be
	done chan struct{} // closed by Close
	gone chan struct{} // closed when the background goroutine has ended

	spins *spinners
	least int // spinPolls, but in the model test
	sched sched
	moves func(from, to state) // a test's, nil otherwise
}

// owner is what belongs to whoever owns the queue.
type owner struct {
	polls    uint64
	news     bool   // the last poll has found more than heartbeats
	nudged   uint64 // posted and reaped, as of when the peer was rung for the end of its operations
	learner  learner
	since    time.Duration // when a goroutine began to wait for what has not come yet, perhaps in vain; 0: none has
	polling  time.Duration // how long somebody has polled since
	denied   bool          // somebody would have, but others did
	spinning time.Duration // when the polling began that goes on; 0: none does
	rude     time.Duration // until when nobody makes way
	late     uint8         // which of the last turns that were given away came back late, as bits
	rested   time.Duration // when the sleeper began to rest, as of its last look
	restedAt uint64        // polls, as of then
	quiet    int           // polls in a row while nothing came or went: see pollLater
	work     uint64        // posted and reaped, as of then
	stirs    uint32        // as of then
}

// learnt is Learnt, for those who do not own the queue.
type learnt struct{ hits, misses, trials, changes atomic.Uint64 }

// New returns a Poller of a queue that nobody polls yet. It has neither goroutines nor
// timers before Start.
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

// Start has the queue polled.
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

// leave is the owner's: it gives ownership up, or says that it is going to stay.
func (p *Poller) leave(to state) {
	p.sched.step()
	if from := p.state.Swap(int32(to)); p.moves != nil {
		p.moves(state(from), to)
	}
	if to != driven {
		p.pass() // the swap was the fence before the look at who is queued
	}
	p.sched.step()
}

// move is for those who do not own the queue.
func (p *Poller) move(from, to state) bool {
	done := p.state.CompareAndSwap(int32(from), int32(to))
	if done && p.moves != nil {
		p.moves(from, to)
	}
	return done
}

// Acquire makes the caller the owner, if nobody is.
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

// Release gives ownership up for what is hoped to be a short time.
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

// Polls is how often the queue was polled; for Queue.Poll.
func (p *Poller) Polls() uint64 { return p.own.polls }

// waits notes that a goroutine begins to wait, now.
func (p *Poller) waits(now time.Duration) {
	if p.own.since == 0 {
		p.own.since = now
	}
}

// learn notes how long something took to arrive after somebody began to wait,
// for whomever it is: with many conns each waits long, and polling pays for all
// of them.
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

// stopSpin notes that a goroutine which waits has polled.
func (p *Poller) stopSpin(now time.Duration) {
	if o := &p.own; o.spinning > 0 {
		o.polling += now - o.spinning
		o.spinning = 0
	}
}

// publish tells those who do not own the queue what was learnt.
func (p *Poller) publish() {
	l := &p.own.learner
	p.budget.Store(int64(l.budget()))
	p.learnt.hits.Store(l.hits)
	p.learnt.misses.Store(l.misses)
	p.learnt.trials.Store(l.tries)
	p.learnt.changes.Store(l.changes)
}

// polls reports that a goroutine which waits polls before it parks.
func (p *Poller) polls() bool { return p.budget.Load() > 0 && p.spins.limit() > 0 }

// inVain reports that polling, i times since start, has taken as long as the budget.
func (p *Poller) inVain(i int, start, budget time.Duration) bool {
	return i%clockEach == 0 && i >= int(int64(p.least)*int64(min(budget, p.spin))/int64(p.spin)) && p.clock.Now()-start > budget
}

// Stats is what a Poller has counted.
type Stats struct {
	Polls     uint64 // as of when the queue was armed last
	Parks     uint64 // waits that ended up blocking
	Doorbells uint64 // heard
	Learnt    Learnt
}

// Learnt is what was found out about polling: see learner.
type Learnt struct {
	PollTime     time.Duration // for how long a wait polls at the moment, 0 if it may not
	Hits, Misses uint64        // waits that polling has ended, and others
	Trials       uint64        // of polling, or of sleeping
	Changes      uint64        // from one to the other
}

// Stats is a snapshot.
func (p *Poller) Stats() Stats {
	l := &p.learnt
	var pollTime time.Duration
	if p.polls() {
		pollTime = time.Duration(p.budget.Load())
	}
	return Stats{
		Polls: p.polled.Load(), Parks: p.parks.Load(), Doorbells: p.doorbells.Load(),
		Learnt: Learnt{pollTime, l.hits.Load(), l.misses.Load(), l.trials.Load(), l.changes.Load()},
	}
}

// Closing reports that nobody is to poll any more.
func (p *Poller) Closing() bool { return p.over.Load() }

// Close ends the background goroutine and the timer, and retires the queue. Only one
// goroutine may call it, once, after Start.
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
