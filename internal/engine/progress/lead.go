package progress

import "time"

// Of the goroutines that wait for their own conns, one leads. It polls for a while, if that pays, and
// then sleeps on a bell of its own, so that what arrives for it wakes no other goroutine. It polls when
// it is woken, and signals those for whom something has come. Once something has come for the leader,
// it goes; whoever waits next leads. While nobody leads, arrivals wake the watcher: see arm.go. A leader that sleeps
// makes way if something comes for others, and polling pays: the watcher polls until one of those leads.

// lead has the goroutine lead until w is signalled. It reports false if it could not: somebody else
// leads, or there is no bell (any more).
func (p *Poller) lead(w *Waiter, what string) bool {
	p.leads.Add(1) // from here on Retire waits: the memory of the flag and of the queue goes after it
	defer p.endLead()
	if !p.beginLead(w) {
		return false
	}
	if p.pollFirst(w) {
		return true
	}
	p.sleep(w, what)
	p.abdicate(w)
	if p.watched.want.Load() != nil {
		p.wakeWatcher()
	}
	return w.Signalled()
}

func (p *Poller) beginLead(w *Waiter) bool {
	was := p.leader.Load()
	leads := !p.Closing() && (was == nil || was.idle) && p.leader.CompareAndSwap(was, w)
	if leads {
		w.state.slept, w.state.begins = 0, true
	}
	p.sched.step()
	return leads
}

// idleTime is how long the watcher polls, at most. The goroutine that it polls for may be about to wait, and need this
// processor: a client whose answer came before its Write had returned waited for the watcher's whole budget.
const idleTime = 50 * time.Microsecond

// pollFirst polls until w is signalled or polling has taken as long as it may. If it reports true,
// w was signalled and leads no more.
func (p *Poller) pollFirst(w *Waiter) (over bool) {
	if !w.joins && !p.polls() && p.doorbell.Load() != nil || !p.takeTurn(w) {
		return false
	}
	o, start := &p.own, p.clock.Now()
	budget := o.learner.now()
	if p.crowded() {
		budget = 0
	}
	switch {
	case w.joins:
		budget = p.patient(budget)
	case w.idle:
		budget = min(budget, p.idle)
	}
	w.state.begins, o.since = false, 0
	if w.learns() {
		o.since = start
	}
	if budget > 0 && !p.spins.start() {
		budget, o.since = 0, 0 // too many others poll: this wait tells nothing
	}
	if budget > 0 {
		p.unwatch()
		if p.poll(w, start, budget) {
			return true
		}
	}
	if !w.idle {
		p.own.found = false // w leads, and looks itself before it sleeps
	}
	p.arm()
	return false
}

// poll is the loop of pollFirst. It gives back the permission to poll.
func (p *Poller) poll(w *Waiter, start, budget time.Duration) (over bool) {
	o := &p.own
	o.polling = true
	for i, end := 1, start+max(p.spin, budget); ; i++ {
		n := p.Poll()
		switch {
		case w.Signalled() || w.idle && p.leader.Load() != w:
			o.polling, o.since = false, 0
			p.spins.stop() // before another one may want to poll
			p.leader.CompareAndSwap(w, nil)
			p.Release()
			return true
		case n > 0: // that was for others: what we wait for is still to come
			i, start = 0, p.clock.Now()
			if w.learns() {
				o.since = start
			}
		case p.inVain(i, start, budget) || p.Closing():
			end = start
		default:
			p.yield(w, i)
		}
		if start >= end {
			o.polling, o.polled = false, p.clock.Now()-start
			p.spins.stop()
			return false
		}
	}
}

// patience is how often the leader yields to an owner before it parks. An owner is usually done
// after one poll or two, but it may be in a call that hangs.
const patience = 16

// takeTurn makes the leader the owner, unless it is signalled first or the queue is over.
func (p *Poller) takeTurn(w *Waiter) bool {
	for try := 0; !w.Signalled() && !p.Closing(); try++ {
		switch {
		case p.Acquire():
			return true
		case try < patience:
			p.sched.yield()
		default:
			p.awaitTurn(w.ch)
		}
	}
	p.pass()
	return false
}

// sleep sleeps until w is signalled, the bell has failed, or the queue is over.
func (p *Poller) sleep(w *Waiter, what string) {
	b := p.doorbell.Load()
	if b == nil || w.Signalled() {
		return
	}
	defer p.park(what).End()
	for !w.Signalled() && !p.Closing() && p.doorbell.Load() == b {
		if p.spin > 0 && w.learns() {
			w.state.slept = p.clock.Now()
		}
		w.state.bell.Store(b)
		p.sched.step()
		err := b.Bell.Sleep(p.rung)
		w.state.bell.Store(nil)
		switch {
		case err != nil || p.watched.want.Load() != nil: // it is closed, or look has seen that the watcher is to poll
			return
		case !w.Signalled():
			p.awaitTurn(w.ch)
		}
	}
}

// look is what the leader does when it begins to sleep, and whenever its bell rings. It reports whether the
// leader must wake. Sleep calls it in the netpoller's callback, since rings count from then on.
func (p *Poller) look() (wakes bool) {
	w := p.leader.Load()
	b := w.state.bell.Load()
	if b.Own != nil && b.led() { // nothing has come
		return w.Signalled() || p.Closing()
	}
	w.state.bell.Store(nil) // while it polls, the bell need not ring for it
	for try := 0; !w.Signalled() && !p.Closing() && p.Acquire(); try++ {
		p.noteSleep(w.state)
		if p.polls() {
			if p.pollAll(); p.own.news && !w.Signalled() {
				p.watched.want.Store(&p.watched.waits)
			}
		}
		switch safe := p.tryArm(w); {
		case !safe:
			p.sched.pause(try)
		case p.watched.want.Load() != nil || w.Signalled() || p.doorbell.Load() != b:
			return true
		default:
			if p.spin > 0 && w.learns() {
				w.state.slept = p.clock.Now() // for the next that comes for others
			}
			w.state.bell.Store(b)
			p.sched.step()
			return w.Signalled() || p.Closing()
		}
	}
	return true
}

// noteSleep tells the learner since when the leader has slept. The leader owns the queue.
func (p *Poller) noteSleep(w *waitState) {
	if p.own.since == 0 || w.begins { // what is there is of another leader, whose wait has ended otherwise
		p.own.since = w.slept
	}
	w.slept, w.begins = 0, false
}

// abdicate ends a leader that has slept, or could not.
func (p *Poller) abdicate(w *Waiter) {
	if !p.leader.CompareAndSwap(w, nil) {
		return // w only polled, and another one has taken the lead
	}
	p.sched.step()
	// An owner may count on the leader, and a ring of the bell may not have been looked at.
	b := p.doorbell.Load()
	if b != nil && (b.Own == nil || !b.Own.CompareAndSwap(doorbellLed, doorbellAsleep) && b.Own.Load() == doorbellAwake) {
		p.words.Add(1)
		if p.Acquire() {
			p.own.since = 0
			p.arm()
		}
	}
	p.pass()
}

// endLead ends what lead has begun.
func (p *Poller) endLead() {
	if p.leads.Add(-1) == 0 && p.Closing() {
		wake(p.unled)
	}
}

// awaitLead waits until nobody leads any more, or looks at the flag as one who does. The queue is over.
func (p *Poller) awaitLead() {
	for p.leads.Load() > 0 {
		if w := p.leader.Load(); w != nil {
			w.Signal()
		}
		p.sched.await(p.unled, nil)
	}
	wake(p.unled) // Close and Retire may both wait
}
