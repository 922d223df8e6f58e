package progress

// arm gives up ownership for an unknown time: whatever arrives from here on wakes a goroutine
// in the background, or is found by the timer if there is nothing to be woken by.
func (p *Poller) arm() {
	for again := true; again; {
		p.polled.Store(p.own.polls)
		switch {
		case p.waiter != nil:
			p.armSleeper()
			return
		case p.doorbell.Load() == nil || p.joining.Load() > 0:
			p.Poll()
			p.pollLater()
			return
		default:
			again = p.armDoorbell()
		}
	}
}

// armSleeper leaves the queue to the wait fd.
func (p *Poller) armSleeper() {
	safe := p.own.polls == p.own.restedAt && p.clock.Now()-p.own.rested < restFor
	p.leave(armed)
	// What the fabric refused while we were the owner waits for a poll.
	if !safe || p.has(refused) || !p.resting.Load() {
		p.wakeBackground()
		p.waiter.Wake() // if it is still in an earlier wait, it must look again
		return
	}
	p.wakeDeep() // a goroutine that posted while we were the owner has left this to us
}

// armDoorbell leaves the queue to the doorbell, or reports that it must be tried again. This
// side sets its flag, fences, polls once more, and only then sleeps; the peer posts, fences, and
// then looks at the flag. The Swap is the full fence.
func (p *Poller) armDoorbell() (again bool) {
	doorbells := p.doorbells.Load()
	b := p.doorbell.Load()
	b.Own.Swap(doorbellAsleep)
	p.sched.step()
	if p.Poll() > 0 {
		return true
	}
	p.leave(armed)
	if p.has(refused) { // not before leave: a goroutine that posts until then sees an owner, and leaves it to us
		p.kick(PollEvery)
	}
	// A doorbell that rang while we were the owner was not acted upon. The flag would show that,
	// too, but once the queue is armed, Close may have unmapped it.
	return p.doorbells.Load() != doorbells && p.Acquire()
}
