package progress

import "time"

// A goroutine that wants the queue while another one owns it parks, since the owner may be in a
// call that hangs. An owner that leaves wakes one of those that are parked. What else they wait
// for does not depend on getting the queue: whichever goroutine polls signals it.

// awaitTurn parks until an owner has left, or ended is closed or has something to receive.
func (p *Poller) awaitTurn(ended <-chan struct{}) {
	p.sched.step()
	p.queued.Add(1)
	defer p.queued.Add(-1)
	p.sched.step()
	// If not, the owner left before it could know of us, or retired, and wakes nobody.
	if s := p.now(); s.taken() && s != retired {
		p.sched.await(p.turn, ended)
	}
}

// pass wakes one goroutine that waits for the queue. It is called by an owner that has left, and
// by a goroutine that may have been woken and does not take the queue.
func (p *Poller) pass() {
	if p.queued.Load() > 0 {
		wake(p.turn)
	}
}

// take makes the caller the owner once the one before has left. It returns false if the queue is
// retired, or if over is closed first.
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

// On a busy host the time for Drain may have passed before Drain, or the owner that it waits for,
// got a processor. What has arrived must be dispatched all the same.
const (
	drainPolls = 256         // how often it may poll, whatever the time
	drainTurn  = time.Second // how long it waits for an owner, which may hang for good
)

// Drain polls until it has found the queue empty a few times, or, if there is always something,
// until most is over: what has arrived already is then dispatched.
func (p *Poller) Drain(most time.Duration) {
	end, over := p.clock.Now()+most, make(chan struct{})
	defer p.clock.AfterFunc(drainTurn, func() { close(over) }).Stop()
	if !p.take(over) {
		return
	}
	for empty, polls := 0, 0; empty < 3 && (polls < drainPolls || p.clock.Now() < end); polls++ {
		if empty++; p.Poll() > 0 {
			empty = 0
		}
	}
	p.arm()
}

// Retire makes the caller the owner of the queue for good: nobody polls any more, and nobody
// may wait for anything. It waits for the owner, if there is one, to leave.
func (p *Poller) Retire() {
	p.over.Store(true)
	if p.take(nil) {
		p.leave(retired)
	}
	p.awaitLead()
}
