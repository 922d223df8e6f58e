package engine

import (
	"sync/atomic"
	"time"
)

// waiter is where one goroutine at a time waits for the state machine. It is
// prepared and signalled under the endpoint's lock, and waited on without.
type waiter struct {
	waiting bool
	set     *atomic.Bool  // for the goroutine while it polls
	ch      chan struct{} // for the goroutine once it has parked
}

func newWaiter() waiter {
	return waiter{set: new(atomic.Bool), ch: make(chan struct{}, 1)}
}

// prepare announces a wait: from here on no signal is lost.
func (w *waiter) prepare() {
	w.waiting = true
	w.set.Store(false)
	select {
	case <-w.ch:
	default:
	}
}

func (w *waiter) signal() {
	if !w.waiting {
		return
	}
	w.waiting = false
	w.set.Store(true)
	select {
	case w.ch <- struct{}{}:
	default:
	}
}

// deadline is one direction's deadline, guarded by the endpoint's lock.
type deadline struct {
	passed bool
	round  int // tells the timer of an earlier deadline that it is stale
	timer  *time.Timer
}

// set moves the deadline. A past one ends a pending call at once.
func (d *deadline) set(e *Endpoint, w *waiter, t time.Time) {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.round++
	d.passed = false
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		d.passed = true
		w.signal()
		d.timer = e.rescueSoon()
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
