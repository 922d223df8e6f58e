package progress

import "time"

// sleeper is what belongs to the background goroutine.
type sleeper struct {
	found bool        // by look
	began time.Time   // its sleep
	looks func() bool // Poller.look, made once
}

// wakeBackground sends the background goroutine to its work: to sleep on the
// wait fd, or to poll for a while where there is none.
func (p *Poller) wakeBackground() {
	select {
	case p.park <- struct{}{}:
	default:
	}
}

// background sleeps on the wait fd while the queue is armed. Where there is no
// fd, a doorbell ends the sleep, and background is left with the polling that
// Settle asks for.
func (p *Poller) background() {
	defer close(p.gone)
	for {
		select {
		case <-p.park:
		case <-p.done:
			return
		}
		if p.waiter == nil {
			p.attend()
			continue
		}
		for p.sleep() {
		}
	}
}

// sleep waits for an arrival on an armed queue. It returns false when the queue
// belongs to somebody, who will arm it again.
func (p *Poller) sleep() bool {
	s := &p.sleeper
	s.found, s.began = false, p.clock.Now()
	err := p.waiter.Wait(s.looks, 0)
	p.resting.Store(false)
	switch {
	case err != nil: // no way to sleep: poll
		p.move(armed, idle)
		p.kick(PollEvery)
		return false
	case s.found:
		p.attend()
	}
	return !p.Closing() && p.now() == armed // woken to look again
}

// look is what sleep's Wait calls. Where it returns false, Wait sleeps if that is
// safe (fi_trywait), and else calls it again.
func (p *Poller) look() bool {
	p.resting.Store(false)
	if p.Closing() || !p.Acquire() {
		return true
	}
	s := &p.sleeper
	if s.found = p.Poll() > 0; s.found {
		p.leave(idle)
		return true
	}
	p.own.rested, p.own.restedAt = s.began, p.own.polls
	p.resting.Store(true)
	p.leave(armed)
	if p.has(refused) {
		p.kick(PollEvery)
	}
	return false
}

// attend polls for a while on behalf of others, after an arrival woke a
// background goroutine, and arms again. A goroutine that waits for its conn
// takes over whenever it likes.
func (p *Poller) attend() {
	spin := p.spin > 0 && startSpin()
	if spin {
		defer stopSpin()
		p.attends.Store(true)
		defer p.attends.Store(false)
	}
	start, visits := p.clock.Now(), p.visits.Load()
	// One look in any case: a driver that is about to park may have looked
	// before what we were woken for arrived, and counts on us.
	for i := 1; (i == 1 || p.drivers.Load() == 0) && !p.Closing() && p.Acquire(); i++ {
		visits++ // this one
		n := p.Poll()
		if n == 0 && (!spin || i%8 == 0 && i >= spinPolls/2 && p.clock.Now().Sub(start) > p.spin/2) {
			p.unattend(spin && visits != p.visits.Load())
			return
		}
		p.leave(idle)
		if n > 0 {
			start, visits = p.clock.Now(), p.visits.Load()
		}
		yield()
		if p.now() == armed {
			return // whom this woke has waited again since
		}
	}
	// Whoever drives now leaves the queue armed or ticking. The driver that was
	// seen may just have given up, though.
	p.kick(tickAfter)
}

// unattend gives ownership up at the end of attend.
func (p *Poller) unattend(visited bool) {
	switch {
	case visited:
		p.Release() // others have come by meanwhile, and will again: see tick
	case p.waiter != nil:
		p.polled.Store(p.own.polls)
		p.leave(armed) // and the caller goes to sleep on it
	default:
		p.arm()
	}
}
