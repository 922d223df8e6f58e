package engine

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/engine/progress"
)

// Doorbell wakes a peer process whose provider has nothing to wait on.
type Doorbell = progress.Doorbell

// Bell is what one of the goroutines that wait sleeps on.
type Bell = progress.Bell

// waiter is where one goroutine at a time waits for the state machine. It is
// prepared and signalled under the endpoint's lock, and waited on without the lock.
type waiter struct {
	waiting bool
	progress.Waiter
}

func newWaiter() waiter { return waiter{Waiter: progress.NewWaiter()} }

// newJoinWaiter returns a waiter for a path check.
func newJoinWaiter() waiter { return waiter{Waiter: progress.NewJoinWaiter()} }

// prepare announces a wait: no signal is lost from here on.
func (w *waiter) prepare() {
	w.waiting = true
	w.Prepare()
}

func (w *waiter) signal() {
	if w.waiting {
		w.waiting = false
		w.Signal()
	}
}

// wait blocks until w is signalled. The caller has prepared w under the lock and has
// released the lock. what is the name of its call, for execution traces.
func (e *Endpoint) wait(w *waiter, what string) {
	if e.pause != nil {
		e.pause(w)
		return
	}
	e.poller.Wait(&w.Waiter, what)
}

// tasks are goroutines that Endpoint.Close waits for. Nothing may be added to a sync.WaitGroup
// while somebody waits for it, so none is started once Close has begun to wait.
type tasks struct {
	mu   sync.Mutex // guards over
	over bool
	wait sync.WaitGroup
}

// start calls f in a goroutine of its own. Once end was called, it reports false and does
// nothing.
func (t *tasks) start(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.over {
		t.wait.Go(f)
	}
	return !t.over
}

// end waits for all tasks.
func (t *tasks) end() {
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	t.wait.Wait()
}

// lock is enter for a call that must not wait for another one that hangs: see progress.Poller.Rescue.
func (e *Endpoint) lock() {
	if e.poller.MayHang() {
		for range 8 {
			if e.tryEnter() {
				return
			}
			runtime.Gosched()
		}
		defer e.poller.Watch()()
	}
	e.enter()
}

// tryEnter is enter unless somebody has the lock. It reports whether the caller has it now.
func (e *Endpoint) tryEnter() bool {
	if !e.mu.TryLock() {
		return false
	}
	e.core.at = time.Time{}
	return true
}

// enterBefore is lock for a call that is to end when ctx does. It reports whether the caller has the lock.
func (e *Endpoint) enterBefore(ctx context.Context) bool {
	if e.tryEnter() {
		return true
	}
	locked := make(chan struct{})
	go func() {
		e.lock()
		select {
		case locked <- struct{}{}: // the lock is the caller's now
		case <-ctx.Done():
			e.mu.Unlock()
		}
	}()
	select {
	case <-locked:
		return true
	case <-ctx.Done():
		return false
	}
}

// interrupt ends a wait from outside, without the lock. The goroutine that waited then checks
// what has changed.
func (e *Endpoint) interrupt(w *waiter) {
	w.Signal()
	e.poller.RescueOwner()
}

// expire ends a wait from outside. It calls f under the lock, to signal the waiter, and gets
// the owner of the queue out of a call that hangs: that may be the goroutine that waits.
func (e *Endpoint) expire(f func()) {
	e.lock()
	f()
	e.mu.Unlock()
	e.poller.RescueOwner()
}

// deadline is one direction's deadline, guarded by the endpoint's lock.
type deadline struct {
	passed bool
	round  int // tells the timer of an earlier deadline that it no longer counts
	timer  *time.Timer
}

// set moves the deadline to t; a zero t means none. A deadline in the past ends a pending call
// at once.
func (d *deadline) set(e *Endpoint, w *waiter, t time.Time) {
	d.stop()
	d.passed = false
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		d.passed = true
		w.signal()
		d.timer = e.poller.RescueSoon()
		return
	}
	if e.pause != nil { // the model test has no timers
		return
	}
	round := d.round
	d.timer = time.AfterFunc(left, func() {
		e.expire(func() {
			if d.round == round {
				d.passed = true
				w.signal()
			}
		})
	})
}

func (d *deadline) stop() {
	d.round++
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}
