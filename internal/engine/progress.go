package engine

import (
	"context"
	"runtime"
	"runtime/trace"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// Progress: libfabric's providers do nothing unless someone polls. One
// goroutine at a time owns a completion queue, polls it and dispatches what it
// finds, to everybody. A goroutine that waits for its own conn is the owner of
// choice: it polls, yielding after each poll, for a bounded time, and then
// parks. A queue that nobody owns is armed: its wait fd, or the sleeping flag
// and the doorbell, wake a background goroutine.
//
// An owner that leaves with what it came for is likely to be back within
// microseconds, so the queue is then left unarmed, and a timer arms it if
// nobody has come back.
const (
	idle  = iota // nobody polls; the timer is going to look
	owned        // one goroutine polls
	armed        // nobody polls; an arrival wakes the background goroutine
)

const (
	// tickAfter is when a queue that was left is looked after first.
	tickAfter = 200 * time.Microsecond
	// busyTick is how often it is while somebody comes back all the time: each look wakes
	// a thread of Go's runtime that has nothing else to do. Abandoned after that, it is
	// armed once a look finds that nobody has come since the last: in two of them at most.
	busyTick  = time.Millisecond
	pollEvery = time.Millisecond // while only polling brings progress
	// restFor is for how long the background goroutine's sleep is left alone: it looks
	// often after something has happened, and then less and less.
	restFor = time.Millisecond
	reapMax = 32
	// spinPolls is how often a goroutine polls at least before it parks. Where a call
	// takes microseconds, as in an emulated machine, these take longer than Config.Spin,
	// and so does waking up, which polling is to save.
	spinPolls = 200
)

// spinners counts polling goroutines over all endpoints of the process: more
// than GOMAXPROCS-1 would starve everything else, Go's netpoller included.
var spinners atomic.Int32

func startSpin() bool {
	limit := int32(min(runtime.GOMAXPROCS(0), runtime.NumCPU())) - 1
	if spinners.Add(1) > limit {
		spinners.Add(-1)
		return false
	}
	return true
}

func stopSpin() { spinners.Add(-1) }

// progress is the part of an Endpoint that decides who polls.
type progress struct {
	state    atomic.Int32
	visits   atomic.Uint32 // how often the queue was acquired
	resting  atomic.Bool   // the background goroutine sleeps on the wait fd, or looks again before it does
	rested   time.Time     // began, as of its last look; the owner's
	restedAt uint64        // polls, as of then; the owner's
	seen     atomic.Uint32 // visits at the last tick
	ticking  atomic.Bool
	bell     atomic.Pointer[Bell]       // of the one peer, where there is nothing to wait on
	park     chan struct{}              // wakes the background goroutine
	drivers  atomic.Int32               // goroutines that wait for their conn and want to poll
	attended atomic.Bool                // a background goroutine polls
	driven   atomic.Bool                // one that waits for its conn does
	joining  atomic.Int32               // peers that come up: their doorbell is not there yet
	done     chan struct{}              // closed when the endpoint closes
	gone     chan struct{}              // closed when the background goroutine has ended
	since    time.Time                  // when a goroutine began to wait for what has not come yet; the owner's
	usual    time.Duration              // how long such waits have taken of late; the owner's
	spun     time.Duration              // how long polling in vain has taken of late; the owner's
	reaped   [reapMax]fabric.Completion // belongs to the owner
	found    bool                       // by look; of the background goroutine
	began    time.Time                  // its Wait, and its own
	looks    func() bool                // e.look, made once
	polls    uint64                     // the owner's
	polled   atomic.Uint64              // polls, as of when the queue was armed last
	refused  atomic.Bool                // the fabric has refused something: offer it again
	choring  atomic.Bool                // the chores timer is set
	evicting atomic.Bool                // that of path checks is
	held     atomic.Bool                // core.held, as of the last visit
	quiet    int                        // polls in a row while nothing came or went; guarded by mu, as is work
	work     uint64                     // posted and reaped, as of then
	slow     atomic.Bool                // the timer is set to more than pollEvery
}

// acquire makes the caller the owner, if nobody is.
func (e *Endpoint) acquire() bool {
	for {
		s := e.state.Load()
		if s == owned {
			return false
		}
		if e.state.CompareAndSwap(s, owned) {
			e.visits.Add(1)
			if s == armed {
				if b := e.bell.Load(); b != nil {
					b.Own.Store(bellAwake)
					e.tellHeld()
				}
			}
			return true
		}
	}
}

// release gives ownership up for what is hoped to be a short time.
func (e *Endpoint) release() {
	e.state.Store(idle)
	e.kick(tickAfter)
}

// rouse takes an armed queue out of the background goroutine's care: what the
// caller is about to cause arrives while it is on its way to wait for it.
func (e *Endpoint) rouse() {
	if e.state.Load() != armed || e.waiter != nil && e.cfg.Spin <= 0 || !e.acquire() {
		return
	}
	if e.waiter != nil && !e.worthPolling() {
		e.arm() // it would park at once
		return
	}
	e.release()
}

// kick makes sure that tick runs soon.
func (e *Endpoint) kick(after time.Duration) {
	if e.ticking.CompareAndSwap(false, true) || e.slow.CompareAndSwap(true, false) {
		e.timer.Reset(after)
	}
}

// poll reaps once and dispatches. Only the owner calls it.
func (e *Endpoint) poll() int {
	_, n, err := e.fab.Exchange(nil, e.reaped[:])
	e.polls++
	if n == 0 && err == nil && !e.refused.Load() {
		return 0
	}
	e.enter()
	e.core.retry()
	if n > 0 {
		e.learn()
		e.core.dispatch(e.reaped[:n])
		e.core.stats.Reaped += uint64(n)
		e.core.stats.Polls = e.polls
		e.core.stats.pollsFull++
	}
	if err != nil {
		e.core.breakdown(err)
	}
	e.leave()
	return n
}

// learn notes how long something took to arrive after somebody began to wait,
// for whomever it is: with many conns each waits long, and polling pays for all
// of them. Long waits count alike: they all say that it does not.
func (e *Endpoint) learn() {
	if !e.since.IsZero() {
		e.usual += (min(e.core.now().Sub(e.since), 10*e.spun) - e.usual) / 4
		e.since = time.Time{}
	}
}

// worthPolling reports that waits are usually not so long that polling gains nothing.
func (e *Endpoint) worthPolling() bool { return e.usual < 3*e.spun }

// wait blocks until w is signalled. The caller, whose call is named what, has
// prepared w under the lock and has released the lock.
func (e *Endpoint) wait(w *waiter, what string) {
	if e.pause != nil {
		e.pause(w)
		return
	}
	if w.set.Load() || e.drive(w) {
		return
	}
	e.parks.Add(1)
	w.park(what)
}

// park shows in an execution trace why the goroutine stands still.
func (w *waiter) park(what string) {
	defer trace.StartRegion(context.Background(), what).End()
	<-w.ch
}

// drive polls until w is signalled or polling has taken as long as it may. It
// returns true if w was signalled; if not, somebody else owns the queue or it
// is armed.
func (e *Endpoint) drive(w *waiter) bool {
	e.drivers.Add(1)
	defer e.drivers.Add(-1)
	for !e.acquire() {
		if e.driven.Load() || w.set.Load() || e.closing() {
			return w.set.Load()
		}
		runtime.Gosched() // whoever polls stops as soon as there is a driver
	}
	start := time.Now()
	if e.since.IsZero() {
		e.since = start
	}
	if e.cfg.Spin > 0 && e.worthPolling() && (startSpin() || e.takeSpin()) {
		defer stopSpin()
		e.driven.Store(true)
		defer e.driven.Store(false)
		for i := 1; ; i++ {
			n := e.poll()
			if w.set.Load() {
				e.release()
				return true
			}
			if n == 0 {
				e.nudge()
				if i%8 == 0 && i >= spinPolls && e.inVain(time.Since(start)) {
					break
				}
				runtime.Gosched()
			}
		}
	}
	e.arm()
	return w.set.Load()
}

// inVain reports that polling without a result has taken as long as it may, and
// notes how long that was.
func (e *Endpoint) inVain(took time.Duration) bool {
	if took <= e.cfg.Spin {
		return false
	}
	e.spun += (min(took, 10*e.cfg.Spin) - e.spun) / 4
	return true
}

// takeSpin takes over from a goroutine that attends to this queue and is about
// to find out that it is not needed any more.
func (e *Endpoint) takeSpin() bool {
	if !e.attended.Load() {
		return false
	}
	spinners.Add(1)
	return true
}

// settle looks after a queue that was left for a short time by somebody who
// will not come back: the next arrival is for others, and must not wait for the
// timer. If it is soon to be expected, a goroutine polls for it.
func (e *Endpoint) settle(soon bool) {
	if e.state.Load() != idle || !e.acquire() {
		return
	}
	if !soon || e.waiter != nil || !e.worthPolling() {
		e.arm()
		return
	}
	e.state.Store(idle)
	e.wakeBackground()
}

// wakeBackground sends the background goroutine to its work: to sleep on the
// wait fd, or to poll for a while where there is none.
func (e *Endpoint) wakeBackground() {
	select {
	case e.park <- struct{}{}:
	default:
	}
}

// tellHeld has the peer ring if it runs out of data while a write is held
// back here.
func (e *Endpoint) tellHeld() {
	if e.held.Load() {
		e.bell.Load().Own.CompareAndSwap(bellAwake, bellHeld)
	}
}

// nudge rings a peer that holds a write back: there is nothing left to do here.
func (e *Endpoint) nudge() {
	if b := e.bell.Load(); b != nil && b.Peer.Load() == bellHeld && b.Peer.CompareAndSwap(bellHeld, bellAwake) {
		b.Ring()
	}
}

// arm gives ownership up for an unknown time: whatever arrives from here on
// wakes the background goroutine.
func (e *Endpoint) arm() {
	for {
		e.polled.Store(e.polls)
		bell := e.bell.Load()
		switch {
		case e.waiter != nil:
			safe := e.polls == e.restedAt && time.Since(e.rested) < restFor
			e.state.Store(armed)
			// What the fabric has refused while we were the owner waits for a poll.
			if !safe || e.refused.Load() || !e.resting.Load() {
				e.wakeBackground()
				e.waiter.Wake() // from an earlier wait: it must look again
			}
			return
		case bell == nil || e.joining.Load() > 0:
			e.poll()
			e.state.Store(idle)
			e.pollLater()
			return
		}
		// Flag, full fence, one more poll, then sleep; the peer posts, full
		// fence, looks at the flag. Swap is the fence.
		bells := e.bells.Load()
		bell.Own.Swap(bellAsleep)
		if e.poll() > 0 {
			continue
		}
		e.nudge()
		e.state.Store(armed)
		if e.mustPoll() { // not before: what is posted meanwhile sees an owner
			e.kick(pollEvery)
		}
		// A doorbell that came while we were the owner was not heard. The flag
		// would tell, too, but once armed, Close may have unmapped it.
		if e.bells.Load() == bells || !e.acquire() {
			return
		}
	}
}

// mustPoll reports that something is under way whose end rings no doorbell:
// completions of our own operations.
func (e *Endpoint) mustPoll() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.core.flying > 0 || e.core.stuck()
}

// attend polls for a while on behalf of others, after an arrival woke a
// background goroutine, and arms again. A goroutine that waits for its conn
// takes over whenever it likes.
func (e *Endpoint) attend() {
	spin := e.cfg.Spin > 0 && startSpin()
	if spin {
		defer stopSpin()
		e.attended.Store(true)
		defer e.attended.Store(false)
	}
	start, visits := time.Now(), e.visits.Load()
	// One look in any case: a driver that is about to park may have looked
	// before what we were woken for arrived, and counts on us.
	for i := 1; (i == 1 || e.drivers.Load() == 0) && !e.closing() && e.acquire(); i++ {
		visits++ // this one
		n := e.poll()
		if n == 0 && (!spin || i%8 == 0 && i >= spinPolls/2 && time.Since(start) > e.cfg.Spin/2) {
			switch {
			case spin && visits != e.visits.Load():
				e.release() // others have come by meanwhile, and will again: see tick
			case e.waiter != nil:
				e.polled.Store(e.polls)
				e.state.Store(armed) // and the caller goes to sleep on it
			default:
				e.arm()
			}
			return
		}
		e.state.Store(idle)
		if n > 0 {
			start, visits = time.Now(), e.visits.Load()
		}
		runtime.Gosched()
		if e.state.Load() == armed {
			return // whom this woke has waited again since
		}
	}
	// Whoever drives now leaves the queue armed or ticking. The driver that was
	// seen may just have given up, though.
	e.kick(tickAfter)
}

// background sleeps on the wait fd while the queue is armed. Where there is no
// fd, a doorbell ends the sleep, and background is left with the polling that
// settle asks for.
func (e *Endpoint) background() {
	defer close(e.gone)
	for {
		select {
		case <-e.park:
		case <-e.done:
			return
		}
		if e.waiter == nil {
			e.attend()
			continue
		}
		for e.sleep() {
		}
	}
}

// sleep waits for an arrival on an armed queue. It returns false when the queue
// belongs to somebody, who will arm it again.
func (e *Endpoint) sleep() bool {
	e.found, e.began = false, time.Now()
	err := e.waiter.Wait(e.looks, 0)
	e.resting.Store(false)
	switch {
	case err != nil: // no way to sleep: poll
		e.state.CompareAndSwap(armed, idle)
		e.kick(pollEvery)
		return false
	case e.found:
		e.attend()
	}
	return !e.closing() && e.state.Load() == armed // woken to look again
}

// look is what sleep's Wait calls. Where it returns false, Wait sleeps if that is
// safe (fi_trywait), and else calls it again.
func (e *Endpoint) look() bool {
	e.resting.Store(false)
	if e.closing() || !e.acquire() {
		return true
	}
	if e.found = e.poll() > 0; e.found {
		e.state.Store(idle)
		return true
	}
	e.rested, e.restedAt = e.began, e.polls
	e.resting.Store(true)
	e.state.Store(armed)
	if e.refused.Load() {
		e.kick(pollEvery)
	}
	return false
}

// closing reports that nobody is to poll any more.
func (e *Endpoint) closing() bool {
	if e.over.Load() {
		return true
	}
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// tick looks after a queue that was left unarmed.
func (e *Endpoint) tick() {
	e.ticking.Store(false)
	e.slow.Store(false)
	if e.closing() {
		return
	}
	if e.state.Load() == armed {
		if (e.refused.Load() || e.waiter == nil && e.mustPoll()) && e.acquire() {
			e.poll()
			e.arm()
		}
		return
	}
	visits := e.visits.Load()
	if visits != e.seen.Swap(visits) || !e.acquire() { // somebody comes by all the time
		e.kick(busyTick)
		return
	}
	e.seen.Store(e.visits.Load()) // this one
	e.arm()
}

// doChores runs what time makes due.
func (e *Endpoint) doChores() {
	e.choring.Store(false)
	if e.closing() {
		return
	}
	e.bury()
	e.enter()
	again := e.core.chores()
	e.leave()
	if again && e.choring.CompareAndSwap(false, true) {
		e.chores.Reset(choreTime)
	}
}
