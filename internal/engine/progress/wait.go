package progress

import (
	"context"
	"runtime/trace"
	"sync/atomic"
)

// Waiter is where one goroutine at a time waits to be signalled.
type Waiter struct {
	joins bool          // for a peer that comes up: it is polled for for longer, and tells nothing of other waits
	set   *atomic.Bool  // for the goroutine while it polls
	ch    chan struct{} // for the goroutine once it has parked
}

// NewWaiter returns a Waiter that is not signalled.
func NewWaiter() Waiter {
	return Waiter{set: new(atomic.Bool), ch: make(chan struct{}, 1)}
}

// NewJoinWaiter returns a Waiter for the end of a path check, which is polled for for longer than
// other waits: see joinTime.
func NewJoinWaiter() Waiter {
	w := NewWaiter()
	w.joins = true
	return w
}

// Prepare announces a wait: from here on no signal is lost.
func (w *Waiter) Prepare() {
	w.set.Store(false)
	select {
	case <-w.ch:
	default:
	}
}

// Signal ends the wait, or the one that is about to begin.
func (w *Waiter) Signal() {
	w.set.Store(true)
	select {
	case w.ch <- struct{}{}:
	default:
	}
}

// Signalled reports that it was since Prepare.
func (w *Waiter) Signalled() bool { return w.set.Load() }

// Wait blocks until w is signalled. The caller, whose call is named what, has
// prepared w.
func (p *Poller) Wait(w *Waiter, what string) {
	if w.Signalled() || p.drive(w) {
		return
	}
	p.parks.Add(1)
	// An execution trace shows why the goroutine stands still.
	defer trace.StartRegion(context.Background(), what).End()
	p.sched.await(w.ch, nil)
}

// patience is how often a goroutine that wants to drive yields to an owner, which is
// done after one poll or two, before it parks: the owner may be in a call that hangs.
const patience = 16

// drive polls until w is signalled or polling has taken as long as it may. It
// returns true if w was signalled; if not, somebody else drives or the queue is armed.
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
				if p.own.spinning > 0 { // by something else than news
					p.stopSpin(p.clock.Now())
				}
				p.Release()
				return true
			}
			if n > 0 { // for others: what we wait for is still to come
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
			p.nudge(doorbellHeld)
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

// Disarm takes an armed queue out of the background goroutine's care: what the
// caller is about to cause arrives while it is on its way to wait for it.
func (p *Poller) Disarm() {
	if p.now() == armed && p.polls() && p.Acquire() { // else it would park at once
		p.Release()
	}
}

// Settle looks after a queue that was left for a short time by somebody who
// will not come back: the next arrival is for others, and must not wait for the
// timer. If it is soon to be expected, a goroutine polls for it.
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
