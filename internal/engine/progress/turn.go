package progress

import "time"

// Whoever wants the queue while it belongs to somebody parks, since the owner may be in a
// call that hangs: an owner that leaves wakes one of those who do. What they wait for
// otherwise does not depend on it: whoever polls signals it.

// awaitTurn parks until an owner has left, or something comes over ended.
func (p *Poller) awaitTurn(ended <-chan struct{}) {
	p.sched.step()
	p.queued.Add(1)
	defer p.queued.Add(-1)
	p.sched.step()
	// Or the owner has left before it could know of us, or retired, and wakes nobody.
	if s := p.now(); s.taken() && s != retired {
		p.sched.await(p.turn, ended)
	}
}

// pass wakes one who waits for the queue. It is called by whoever has left it, and by
// who has been woken and does not take it.
func (p *Poller) pass() {
	if p.queued.Load() > 0 {
		select {
		case p.turn <- struct{}{}:
		default:
		}
	}
}

// take makes the caller the owner once the one before has left. It reports false if that
// has the queue for good, or over is closed first.
func (p *Poller) take(over <-chan struct{}) bool {
	for !p.Acquire() {
		select {
		case <-over:
			p.pass()
			return false
		default:
		}
		if p.now() == retired {
			p.pass()
			return false
		}
		p.awaitTurn(over)
	}
	return true
}

// On a busy host the time for Drain may have passed before it, or the owner that it waits
// for, has had a processor. What has arrived is to be dispatched all the same.
const (
	drainPolls = 256         // so often it polls, whatever the time
	drainTurn  = time.Second // so long it waits for an owner, which may hang for good
)

// Drain polls until the queue has been empty for a few times, or for as long as most if
// there is always something: what has arrived already is then dispatched.
func (p *Poller) Drain(most time.Duration) {
	end, over := p.clock.Now()+most, make(chan struct{})
	defer p.clock.AfterFunc(drainTurn, func() { close(over) }).Stop()
	for empty, polls := 0, 0; empty < 3 && p.take(over); {
		n := p.Poll()
		p.Release()
		polls++
		switch {
		case n == 0:
			empty++
		case polls > drainPolls && p.clock.Now() >= end:
			return
		default:
			empty = 0
		}
	}
}

// Retire makes the caller the owner of the queue for good: nobody polls any more,
// and nobody is to wait for anything.
func (p *Poller) Retire() {
	p.over.Store(true)
	if p.take(nil) {
		p.leave(retired)
	}
}
