package progress

import "sync/atomic"

// A queue that nobody polls is armed: whatever arrives wakes the leader, if there is one, or else the
// watcher, which polls once. With a wait object that is a goroutine of the Poller; with doorbells it
// is whoever reads the watcher's bell, and calls Doorbell.

// arm gives up ownership for an unknown time.
func (p *Poller) arm() {
	if !p.tryArm() {
		p.waiter.Watcher().Wake() // it looks until it is safe to sleep
	}
}

// tryArm is arm. It reports false if it is not safe to sleep.
func (p *Poller) tryArm() (safe bool) {
	for safe = true; ; {
		words := p.words.Load()
		switch b := p.doorbell.Load(); {
		case p.hears():
			safe = p.armWaiter()
		case b != nil:
			p.armDoorbell(b)
		default:
			p.pollAll()
			p.polled.Store(p.own.polls)
			p.pollLater()
			return true
		}
		if p.words.Load() == words || !p.Acquire() {
			return safe
		}
	}
}

// armWaiter leaves the queue to the wait object. The leader, if there is one, polls, asks fi_trywait
// and sleeps by itself; but a poll by others may undo fi_trywait.
func (p *Poller) armWaiter() (safe bool) {
	if p.leader.Load() != nil {
		p.unwatch()
		p.pollAll()
		found := p.own.found
		p.leaveArmed()
		if found {
			p.waiter.Bell().Wake()
		}
		return true
	}
	if !p.own.watched {
		p.own.watched = true
		p.own.empty = !p.waiter.Watch(true) && p.own.empty
	}
	if !p.own.empty {
		p.pollAll()
	}
	safe = p.tryWait()
	p.leaveArmed()
	return safe || p.deaf.Load()
}

// unwatch has arrivals no longer wake the watcher of a wait object. The owner calls it.
func (p *Poller) unwatch() {
	if p.own.watched {
		p.own.watched = false
		p.waiter.Watch(false)
	}
}

// tryWait reports whether it is safe to sleep on the wait object: see fi_trywait(3).
func (p *Poller) tryWait() bool {
	p.sched.step()
	safe, err := p.waiter.TryWait()
	if err != nil {
		p.fail()
	}
	return safe
}

// hears reports whether there is a wait object, and it has not failed.
func (p *Poller) hears() bool { return p.waiter != nil && !p.deaf.Load() }

// fail has the timer poll, since the wait object has failed.
func (p *Poller) fail() {
	p.deaf.Store(true)
	p.kick(PollEvery)
}

// armDoorbell leaves the queue to the doorbell. This side sets its flag, fences, polls once more, and
// only then sleeps; the peer posts, fences, and then looks at the flag. The Swap is the full fence.
func (p *Poller) armDoorbell(b *Doorbell) {
	flag := uint32(doorbellAsleep)
	if p.leader.Load() != nil && b.Bell != nil {
		flag = doorbellLed
	}
	p.sched.step()
	b.Own.Swap(flag)
	p.sched.step()
	p.pollAll()
	p.leaveArmed()
}

// leaveArmed leaves a queue that has just been polled armed, and has the timer see to what nothing
// will announce.
func (p *Poller) leaveArmed() {
	p.polled.Store(p.own.polls)
	look := p.nextLook()
	p.leave(armed)
	// Not before: a goroutine that posted until then saw an owner, and left it to us.
	if p.has(refused) {
		p.kick(PollEvery)
	} else if look > 0 {
		p.lookIn(look)
	}
}

// watched belongs to the watcher: the goroutine that watches a wait object while nobody leads, or reads the
// watcher's bell, and goes on polling if something has come and polling pays, or if it is told to (want). More is
// likely to come then, such as a conn for Accept: without this, a conn that is dialled, used and closed over shm
// takes seven times as long.
type watched struct {
	waits, joins Waiter                 // as what it polls. Nobody signals them
	want         atomic.Pointer[Waiter] // as what it is to poll, nil if it need not
	turn         chan struct{}          // wakes it if it does not sleep on a wait object
	rung         func() bool            // watch, made once
}

func (w *watched) init(watch func() bool) {
	w.waits, w.joins, w.turn, w.rung = NewWaiter(), NewJoinWaiter(), make(chan struct{}, 1), watch
	w.waits.idle, w.joins.idle = true, true
}

// Doorbell is called when the peer has rung the watcher's bell. It polls.
func (p *Poller) Doorbell() {
	p.doorbells.Add(1)
	p.watch()
	p.pollOn()
}

// want has the watcher poll as w.
func (p *Poller) want(w *Waiter) {
	p.watched.want.Store(w)
	p.wakeWatcher()
}

func (p *Poller) wakeWatcher() {
	wake(p.watched.turn)
	if p.waiter != nil {
		p.waiter.Watcher().Wake()
	}
}

// watching is a goroutine until the Poller is closed. With doorbells another one reads the bell.
func (p *Poller) watching() {
	defer close(p.ended)
	for !p.Closing() {
		if !p.hears() {
			p.sched.await(p.watched.turn, nil)
		} else if err := p.waiter.Watcher().Sleep(p.watched.rung); err != nil {
			p.fail()
		}
		p.pollOn()
	}
}

// watch polls when the watcher's bell has rung. With a wait object it is called by Sleep: see lookAsLeader. It
// reports whether the watcher has more to do than to sleep.
func (p *Poller) watch() bool {
	for try := 0; p.watched.want.Load() == nil && !p.Closing(); try++ {
		p.words.Add(1)
		if p.waiter != nil && p.leader.Load() != nil || !p.Acquire() {
			return false
		}
		p.pollAll()
		if p.own.news && p.polls() {
			p.watched.want.Store(&p.watched.waits)
		}
		if p.tryArm() {
			return p.watched.want.Load() != nil
		}
		p.sched.pause(try)
	}
	return true
}

// pollOn polls as the leader does, though nobody waits, if that is wanted.
func (p *Poller) pollOn() {
	w := p.watched.want.Swap(nil)
	if w == nil {
		return
	}
	p.leads.Add(1)
	defer p.endLead()
	if p.leader.Load() == nil && p.beginLead(w) && !p.pollFirst(w) {
		p.abdicate(w)
	}
}
