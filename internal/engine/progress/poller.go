package progress

import (
	"fmt"
	"sync"
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
	retired
)

var stateNames = [...]string{"idle", "armed", "owned", "retired"}

func (s state) String() string { return stateNames[s] }

// taken reports whether somebody owns the queue, and will see to it when leaving.
func (s state) taken() bool { return s >= owned }

const (
	// tickAfter is how long after an owner has left the queue idle the timer first looks after it.
	tickAfter = 200 * time.Microsecond
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
	More        bool   // there may be more
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
	Waiter  fabric.Waiter  // the wait object; nil: there are doorbells, or only the timer
	Rescuer fabric.Rescuer // nil: the provider's calls do not hang
	// Spin is how long a waiting goroutine polls before it parks, at most: see learner. If it is
	// 0 or less, no goroutine polls while it waits.
	Spin time.Duration
	// Ticks says that the wait object does not announce everything, so the timer looks now and
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
	state atomic.Int32

	own     owner
	watched watched

	// Written by the functions named, read by all.
	report   atomic.Uint64            // Note: the last Report, as a word
	budget   atomic.Int64             // publish: for how long a wait polls, 0 if none may
	doorbell atomic.Pointer[Doorbell] // SetDoorbell, fail: the one peer's, or the wait object's bells; nil: only the timer
	words    atomic.Uint32            // watch, abdicate: how often the owner was asked to arm anew
	peers    atomic.Int32             // Join, Left: how many peers may send something
	joining  atomic.Int32             // Join, Joined: how many are coming up, and have no doorbell yet
	stirs    atomic.Uint32            // Join, Stir: how often somebody said that more is to come
	parks    atomic.Uint64            // park: how often a goroutine has parked
	polled   atomic.Uint64            // leaveArmed: own.polls when the queue was armed last
	queued   atomic.Int32             // awaitTurn: how many goroutines wait for the owner to leave
	leader   atomic.Pointer[Waiter]   // lead, pollOn: whose goroutine leads
	leads    atomic.Int32             // lead, pollOn: how many goroutines are in them
	over     atomic.Bool              // Close, Retire: the queue is retired, or about to be

	mu     sync.Mutex // guards learnt
	learnt metrics.Polling

	turn  chan struct{} // wakes one of the goroutines that are queued
	unled chan struct{} // wakes awaitLead
	ended chan struct{} // closed when the watcher has ended
	timer timer

	spins *spinners
	least int           // spinPolls, except in the model test
	rung  func() bool   // look, made once
	idle  time.Duration // idleTime, except in tests
	sched sched
	moves func(from, to state) // called for each transition in tests, nil otherwise
}

// owner is what belongs to whoever owns the queue.
type owner struct {
	polls   uint64
	visits  uint32 // how often the queue has been acquired
	found   bool   // something was found since the queue was armed last, which undoes fi_trywait
	more    bool   // the last poll may not have found all that was there
	empty   bool   // the last poll has found nothing, and was by this owner
	news    bool   // this owner has found something
	watched bool   // arrivals wake the watcher of the wait object
	learner learner
	since   time.Duration // since when the leader has waited for what has not come yet; 0: the learner is not to know
	polled  time.Duration // how long it has polled in vain since then
	polling bool          // it polls
	seen    uint32        // visits, when the timer last looked
	quiet   int           // how often the timer has looked since something changed: see nextLook
	work    uint64        // posted and reaped until then
	stirs   uint32        // Poller.stirs, likewise
	counted uint32        // see spinners.count
	told    uint64        // how many waits spinners has been told of
}

// New returns a Poller for a queue that nobody polls yet. It has neither goroutines nor
// timers before Start is called.
func New(cfg Config) *Poller {
	p := &Poller{
		queue: cfg.Queue, waiter: cfg.Waiter, rescuer: cfg.Rescuer, spin: cfg.Spin, clock: cfg.Clock, ticks: cfg.Ticks,
		own: owner{learner: newLearner(cfg.Spin, origin)}, spins: everybody, least: spinPolls, idle: idleTime,
		turn: make(chan struct{}, 1), unled: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	if p.clock == nil {
		p.clock = realClock{}
	}
	if p.waiter != nil {
		p.doorbell.Store(&Doorbell{Bell: p.waiter.Bell(), Watcher: p.waiter.Watcher()})
	}
	p.rung = p.look
	p.watched.init(p.watch)
	p.publish()
	return p
}

// Start starts the timer and the watcher, which see to it that the queue is polled.
func (p *Poller) Start() {
	p.timer.Timer = p.clock.AfterFunc(time.Hour, p.tick)
	p.sched.spawn(p.watching)
	p.kick(PollEvery)
}

func (p *Poller) String() string {
	return fmt.Sprintf("%v, timer %v", p.now(), p.timer.is())
}

// now is the state.
func (p *Poller) now() state { return state(p.state.Load()) }

// leave is called by the owner, to give up ownership.
func (p *Poller) leave(to state) {
	p.sched.step()
	if from := p.state.Swap(int32(to)); p.moves != nil {
		p.moves(state(from), to)
	}
	p.pass() // the swap was the fence before this looks for goroutines that are queued
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
			p.own.visits++
			p.own.empty, p.own.news = false, false
			p.awake()
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
	p.own.empty = f.Completions == 0
	p.own.more = f.More
	if f.Completions > 0 {
		p.own.found, p.own.news = true, true
		p.learn(f.Moved)
	}
	return f.Completions
}

// pollAll polls until it has found all that was there. A provider with a wait object may have taken no more
// than one message off a connection, and the rest announces itself no more: so the last poll finds nothing.
func (p *Poller) pollAll() {
	for p.Poll() > 0 && (p.own.more || p.waiter != nil) {
	}
}

// Polls is how often the queue has been polled. Only Queue.Poll may call it.
func (p *Poller) Polls() uint64 { return p.own.polls }

// learn notes how long something took to arrive after the leader began to wait, whichever
// goroutine it is for: with many conns each of them waits for long, and polling pays for
// all of them.
func (p *Poller) learn(moved uint64) {
	o := &p.own
	p.spins.count(&o.counted)
	if o.since == 0 || p.leader.Load() == nil { // the one that waited since then has ended otherwise
		o.since = 0
		return
	}
	now := p.clock.Now()
	took, polled := now-o.since, o.polled
	if o.polling {
		polled = took
	}
	o.since, o.polled = 0, 0
	if p.spins.turn(now); p.crowded() { // so it did not poll, and nothing is learnt from that
		return
	}
	o.learner.wasteful = p.spins.often.Load()
	if o.learner.waited(now, took, polled, o.polling, moved) {
		p.publish()
	}
}

// publish makes what was learnt visible to goroutines that do not own the queue.
func (p *Poller) publish() {
	l, budget := &p.own.learner, time.Duration(0)
	if p.spins.look() {
		budget = l.now()
	}
	p.budget.Store(int64(budget))
	p.spins.waits.Add(int64(l.hits + l.misses - p.own.told))
	p.own.told = l.hits + l.misses
	p.mu.Lock()
	defer p.mu.Unlock()
	p.learnt = metrics.Polling{Hits: l.hits, Misses: l.misses, Trials: l.tries, Changes: l.changes}
}

// polls reports whether a goroutine that waits polls before it parks.
func (p *Poller) polls() bool { return p.budget.Load() > 0 && !p.crowded() }

// crowded reports whether too many queues are in use for this one to poll. Nothing stops a budget that is beyond
// learning.
func (p *Poller) crowded() bool { return p.own.learner.learns && p.spins.crowded() }

// inVain reports whether polling, i times since start, has used up the budget.
func (p *Poller) inVain(i int, start, budget time.Duration) bool {
	return i%clockEach == 0 && i >= int(int64(p.least)*int64(min(budget, p.spin))/int64(p.spin)) && p.clock.Now()-start > budget
}

// Stats is what a Poller has counted so far.
type Stats struct {
	Polls    uint64        // up to when the queue was last armed
	Parks    uint64        // waits that ended up blocking
	PollTime time.Duration // how long a wait polls at the moment; 0 if it may not poll
	Polling  metrics.Polling
}

// Stats returns a snapshot of the counters.
func (p *Poller) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{Polls: p.polled.Load(), Parks: p.parks.Load(), Polling: p.learnt}
	if p.spins.look() && !p.crowded() {
		s.PollTime = time.Duration(p.budget.Load())
	}
	return s
}

// Closing reports whether polling is to end: Close or Retire has been called.
func (p *Poller) Closing() bool { return p.over.Load() }

// Close ends the watcher and the timer, and retires the queue. It may be called only once, after Start.
func (p *Poller) Close() {
	p.over.Store(true)
	p.wakeWatcher()
	p.sched.await(p.ended, nil)
	p.Retire()
	p.timer.Stop()
}
