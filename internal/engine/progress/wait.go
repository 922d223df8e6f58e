package progress

import (
	"context"
	"runtime/trace"
	"sync/atomic"
)

// Waiter is what one goroutine at a time waits on to be signalled.
type Waiter struct {
	joins bool          // it waits for a peer to come up: it polls for longer, and the learner leaves it out
	set   *atomic.Bool  // tells the goroutine while it polls
	ch    chan struct{} // tells the goroutine once it has parked
}

// NewWaiter returns a Waiter that is not signalled.
func NewWaiter() Waiter {
	return Waiter{set: new(atomic.Bool), ch: make(chan struct{}, 1)}
}

// NewJoinWaiter returns a Waiter for the end of a path check. Such a wait polls for longer than
// others: see joinTime.
func NewJoinWaiter() Waiter {
	w := NewWaiter()
	w.joins = true
	return w
}

// Prepare announces a wait: no signal that comes after it is lost.
func (w *Waiter) Prepare() {
	w.set.Store(false)
	select {
	case <-w.ch:
	default:
	}
}

// Signal ends the wait that is going on, or the one that has been prepared.
func (w *Waiter) Signal() {
	w.set.Store(true)
	select {
	case w.ch <- struct{}{}:
	default:
	}
}

// Signalled reports whether Signal has been called since Prepare.
func (w *Waiter) Signalled() bool { return w.set.Load() }

// Wait blocks until w is signalled. The caller must have prepared w. what is the name of its
// call, for execution traces.
func (p *Poller) Wait(w *Waiter, what string) {
	if w.Signalled() || p.drive(w) {
		return
	}
	p.parks.Add(1)
	// This makes an execution trace show why the goroutine stands still.
	defer trace.StartRegion(context.Background(), what).End()
	p.sched.await(w.ch, nil)
}

// patience is how often a goroutine that wants to drive yields to an owner before it parks. An
// owner is usually done after one poll or two, but it may be in a call that hangs.
const patience = 16

// drive polls until w is signalled or polling has taken as long as it may. It returns true if w
// was signalled. If not, somebody else drives, or the queue is armed, left to the timer, or over.
func (p *Poller) drive(w *Waiter) bool {
	p.drivers.Add(1)
	defer p.drivers.Add(-1)
	for try := 0; !p.Acquire(); try++ {
		switch {
		case p.now() >= driven || w.Signalled() || p.Closing():
			p.pass()
			return w.Signalled()
		case try < patience:
			p.sched.yield()
		default:
			p.awaitTurn(w.ch)
		}
	}
	start := p.clock.Now()
	budget, began := p.own.learner.budget(), start
	if w.joins {
		budget = p.patient(budget)
	} else {
		p.waits(start)
	}
	mayPoll := budget > 0 && (p.takeSpin() || p.spins.start())
	p.own.denied = !w.joins && budget > 0 && !mayPoll
	if mayPoll {
		defer p.spins.stop()
		p.leave(driven)
		if !w.joins {
			p.own.spinning = start
		}
		for i := 1; ; i++ {
			n := p.Poll()
			if w.Signalled() {
				if p.own.spinning > 0 { // it was signalled by something other than news
					p.stopSpin(p.clock.Now())
				}
				p.Release()
				return true
			}
			if n > 0 { // that was for others: what we wait for is still to come
				if i, start = 0, p.clock.Now(); start-began > max(p.spin, budget) {
					break
				}
				if !w.joins {
					p.stopSpin(start)
					p.waits(start)
					p.own.spinning = start
				}
				continue
			}
			if p.inVain(i, start, budget) {
				break
			}
			p.yield(i)
		}
		p.stopSpin(p.clock.Now())
	}
	p.arm()
	return w.Signalled()
}

// Disarm takes an armed queue out of the background goroutine's care. It is for a caller that is
// about to cause an arrival, which may come while the caller is on its way to wait for it.
func (p *Poller) Disarm() {
	if p.now() == armed && p.polls() && p.Acquire() { // if waits do not poll, the caller will park at once
		p.Release()
	}
}

// Settle looks after a queue that was released for a short time by a goroutine that will not
// come back: the next arrival is for others, and must not wait for the timer. If soon is set, the
// arrival is expected soon, and a goroutine polls for it if there is nothing to sleep on.
func (p *Poller) Settle(soon bool) {
	if p.now() != idle || !p.Acquire() {
		return
	}
	if !soon || p.waiter != nil || !p.polls() {
		p.arm()
		return
	}
	p.leave(idle)
	p.wakeBackground()
}
