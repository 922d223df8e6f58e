package progress

// arm gives ownership up for an unknown time: whatever arrives from here on
// wakes the background goroutine.
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
	// What the fabric has refused while we were the owner waits for a poll.
	if !safe || p.has(refused) || !p.resting.Load() {
		p.wakeBackground()
		p.waiter.Wake() // from an earlier wait: it must look again
		return
	}
	p.wakeDeep() // who posted while we were the owner has left it to us
}

// armDoorbell leaves the queue to the doorbell, or reports that it must be tried again:
// flag, full fence, one more poll, then sleep; the peer posts, full fence, looks at the
// flag. Swap is the fence.
func (p *Poller) armDoorbell() (again bool) {
	doorbells := p.doorbells.Load()
	b := p.doorbell.Load()
	b.Own.Swap(doorbellAsleep)
	p.sched.step()
	if p.has(flying) { // or Note, which has reported it by then, sees that we sleep
		b.sleepFlying()
	}
	if p.Poll() > 0 {
		return true
	}
	p.nudge(doorbellHeld)
	// Once for what we have done: two sides that both wait for each other are not to ring for ever.
	if work := p.report.Load() >> workShift; work != p.own.nudged && p.nudge(doorbellFlying) {
		p.own.nudged = work
	}
	p.leave(armed)
	switch { // not before: what is posted meanwhile sees an owner
	case p.has(refused):
		p.kick(PollEvery)
	case p.has(flying):
		p.kickLate(lastLook) // should the peer not ring
	}
	// A doorbell that came while we were the owner was not heard. The flag
	// would tell, too, but once armed, Close may have unmapped it.
	return p.doorbells.Load() != doorbells && p.Acquire()
}
