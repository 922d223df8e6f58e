package progress

import (
	"context"
	"runtime/trace"
	"sync/atomic"
	"time"
)

// Waiter is what one goroutine at a time waits on to be signalled.
type Waiter struct {
	joins bool          // it waits for a peer to come up: it polls for longer, and the learner leaves it out
	idle  bool          // nobody waits: the goroutine only polls, and whoever does wait takes the lead from it
	state *waitState    // tells the goroutine while it polls, or sleeps as the leader
	ch    chan struct{} // tells the goroutine once it has parked
}

type waitState struct {
	set  atomic.Bool
	bell atomic.Pointer[Doorbell] // whose bell the goroutine sleeps on, if it leads
	// Only the goroutine uses these, while it leads.
	slept  time.Duration // when it last began to sleep, if the learner is to know
	begins bool          // it has not owned the queue since it began to lead
}

// NewWaiter returns a Waiter that is not signalled.
func NewWaiter() Waiter {
	return Waiter{state: new(waitState), ch: make(chan struct{}, 1)}
}

// NewJoinWaiter returns a Waiter for the end of a path check. Such a wait polls for longer than
// others: see joinTime.
func NewJoinWaiter() Waiter {
	w := NewWaiter()
	w.joins = true
	return w
}

// learns reports whether the learner takes the wait in.
func (w *Waiter) learns() bool { return !w.joins && !w.idle }

// Prepare announces a wait: no signal that comes after it is lost.
func (w *Waiter) Prepare() {
	w.state.set.Store(false)
	select {
	case <-w.ch:
	default:
	}
}

// Signal ends the wait that is going on, or the one that has been prepared.
func (w *Waiter) Signal() {
	w.state.set.Store(true)
	if b := w.state.bell.Load(); b != nil {
		b.Bell.Wake()
	}
	wake(w.ch)
}

// Signalled reports whether Signal has been called since Prepare.
func (w *Waiter) Signalled() bool { return w.state.set.Load() }

// Wait blocks until w is signalled. The caller must have prepared w. what is the name of its
// call, for execution traces.
func (p *Poller) Wait(w *Waiter, what string) {
	if w.Signalled() || p.lead(w, what) {
		return
	}
	defer p.park(what).End()
	p.sched.await(w.ch, nil)
}

// park counts a wait that blocks, and makes an execution trace show why the goroutine stands still.
func (p *Poller) park(what string) *trace.Region {
	p.parks.Add(1)
	return trace.StartRegion(context.Background(), what)
}

// Expect says that a peer that is coming up is about to send something, and that nobody waits for
// it. The watcher then polls for a while.
func (p *Poller) Expect() {
	if p.spin > 0 {
		p.want(&p.watched.joins)
	}
}

// Settle looks after a queue that was released for a short time by a goroutine that will not
// come back: the next arrival is for others, and must not wait for the timer. If soon is set, it
// is expected soon, and the watcher polls for it if that pays.
func (p *Poller) Settle(soon bool) {
	if p.now() != idle || !p.Acquire() {
		return
	}
	if soon && p.polls() {
		p.leave(idle)
		p.want(&p.watched.waits)
		return
	}
	p.arm()
}
