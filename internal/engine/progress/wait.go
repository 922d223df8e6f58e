package progress

import (
	"context"
	"runtime"
	"runtime/trace"
	"sync/atomic"
	"time"
)

// Waiter is where one goroutine at a time waits to be signalled.
type Waiter struct {
	set *atomic.Bool  // for the goroutine while it polls
	ch  chan struct{} // for the goroutine once it has parked
}

// NewWaiter returns a Waiter that is not signalled.
func NewWaiter() Waiter {
	return Waiter{set: new(atomic.Bool), ch: make(chan struct{}, 1)}
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

// park shows in an execution trace why the goroutine stands still.
func (w *Waiter) park(what string) {
	defer trace.StartRegion(context.Background(), what).End()
	<-w.ch
}

// Wait blocks until w is signalled. The caller, whose call is named what, has
// prepared w.
func (p *Poller) Wait(w *Waiter, what string) {
	if w.Signalled() || p.drive(w) {
		return
	}
	p.parks.Add(1)
	w.park(what)
}

// drive polls until w is signalled or polling has taken as long as it may. It
// returns true if w was signalled; if not, somebody else owns the queue or it
// is armed.
func (p *Poller) drive(w *Waiter) bool {
	p.drivers.Add(1)
	defer p.drivers.Add(-1)
	for !p.Acquire() {
		if p.now() >= driven || w.Signalled() || p.Closing() {
			return w.Signalled()
		}
		yield() // whoever polls stops as soon as there is a driver
	}
	start := p.clock.Now()
	if p.own.since.IsZero() {
		p.own.since = start
	}
	if p.spin > 0 && p.worthPolling() && (startSpin() || p.takeSpin()) {
		defer stopSpin()
		p.leave(driven)
		for i := 1; ; i++ {
			n := p.Poll()
			if w.Signalled() {
				p.Release()
				return true
			}
			if n == 0 {
				p.nudge()
				if i%8 == 0 && i >= spinPolls && p.inVain(p.clock.Now().Sub(start)) {
					break
				}
				yield()
			}
		}
	}
	p.arm()
	return w.Signalled()
}

// inVain reports that polling without a result has taken as long as it may, and
// notes how long that was.
func (p *Poller) inVain(took time.Duration) bool {
	if took <= p.spin {
		return false
	}
	p.own.spun += (min(took, 10*p.spin) - p.own.spun) / 4
	return true
}

// Rouse takes an armed queue out of the background goroutine's care: what the
// caller is about to cause arrives while it is on its way to wait for it.
func (p *Poller) Rouse() {
	if p.now() != armed || p.waiter != nil && p.spin <= 0 || !p.Acquire() {
		return
	}
	if p.waiter != nil && !p.worthPolling() {
		p.arm() // it would park at once
		return
	}
	p.Release()
}

// Settle looks after a queue that was left for a short time by somebody who
// will not come back: the next arrival is for others, and must not wait for the
// timer. If it is soon to be expected, a goroutine polls for it.
func (p *Poller) Settle(soon bool) {
	if p.now() != idle || !p.Acquire() {
		return
	}
	if !soon || p.waiter != nil || !p.worthPolling() {
		p.arm()
		return
	}
	p.leave(idle)
	p.wakeBackground()
}

// spinners counts polling goroutines over all endpoints of the process: more
// than GOMAXPROCS-1 would starve everything else, Go's netpoller included.
var spinners atomic.Int32

// Spinners is how many goroutines of the process poll.
func Spinners() int { return int(spinners.Load()) }

func startSpin() bool {
	limit := int32(min(runtime.GOMAXPROCS(0), runtime.NumCPU())) - 1
	if spinners.Add(1) > limit {
		spinners.Add(-1)
		return false
	}
	return true
}

func stopSpin() { spinners.Add(-1) }

// takeSpin takes over from a goroutine that attends to this queue and is about
// to find out that it is not needed any more.
func (p *Poller) takeSpin() bool {
	if !p.attends.Load() {
		return false
	}
	spinners.Add(1)
	return true
}

func yield() { runtime.Gosched() }
