package progress

import "sync/atomic"

// A queue that nobody polls is armed: whatever arrives wakes the leader, if there is one, or else the
// watcher, which polls once.

// arm gives up ownership for an unknown time.
func (p *Poller) arm() {
	if !p.tryArm(nil) {
		p.wakeWatcher() // it looks until it is safe to sleep
	}
}

// tryArm is arm, called by self, the leader, or, if self is nil, by anybody else. It reports false if it is not
// safe to sleep. A leader that its own poll has signalled is about to abdicate.
func (p *Poller) tryArm(self *Waiter) (safe bool) {
	for safe = true; ; {
		words := p.words.Load()
		switch b := p.doorbell.Load(); {
		case b == nil:
			p.pollAll()
			p.leaveArmed()
		case b.Own == nil:
			safe = p.armWaiter(b, self)
		default:
			p.armDoorbell(b, self)
		}
		if p.words.Load() == words || !p.Acquire() {
			return safe
		}
	}
}

// armWaiter leaves the queue to the wait object. The leader asks fi_trywait itself, but a poll by others may
// undo that.
func (p *Poller) armWaiter(b *Doorbell, self *Waiter) (safe bool) {
	if leader := p.leader.Load(); leader != nil {
		p.unwatch()
		p.pollAll()
		if leader != self || self.Signalled() {
			found := p.own.found
			p.leaveArmed()
			if leader != self && found {
				b.Bell.Wake()
			}
			return true
		}
	} else {
		if !p.own.watched {
			p.own.watched = true
			p.own.empty = !p.waiter.Watch(true) && p.own.empty
		}
		if !p.own.empty {
			p.pollAll()
		}
	}
	safe = p.tryWait()
	p.leaveArmed()
	return safe || p.doorbell.Load() == nil
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

// fail has the timer poll, since the wait object has failed, or the watcher's bell.
func (p *Poller) fail() {
	if b := p.doorbell.Swap(nil); b != nil {
		b.Watcher.Wake()
	}
	p.kick(PollEvery)
}

// armDoorbell leaves the queue to the doorbell. This side sets its flag, fences, polls once more, and
// only then sleeps; the peer posts, fences, and then looks at the flag. The Swap is the full fence.
// A leader that goes before the flag says led leaves the flag alone, and the peer may already have rung
// the leader's bell when the owner sees that: the owner begins anew.
func (p *Poller) armDoorbell(b *Doorbell, self *Waiter) {
	for gone := true; gone; {
		p.sched.step()
		b.Own.Swap(doorbellAsleep)
		p.sched.step()
		p.pollAll()
		gone = false
		if leader := p.leader.Load(); leader != nil && (leader != self || !self.Signalled()) {
			p.sched.step()
			b.Own.CompareAndSwap(doorbellAsleep, doorbellLed)
			p.sched.step()
			gone = p.leader.Load() != leader
		}
	}
	p.leaveArmed()
}

// leaveArmed leaves a queue that has just been polled armed, and has the timer see to what nothing
// will announce.
func (p *Poller) leaveArmed() {
	p.polled.Store(p.own.polls)
	p.own.found = false
	report, stirs := p.report.Load(), p.stirs.Load()
	look := p.nextLook()
	p.leave(armed)
	// A goroutine that posted until then, or said that more is to come, saw an owner, and left it to us.
	b := p.doorbell.Load()
	announced := b != nil && b.Own != nil
	switch stirred := p.stirs.Load() != stirs; {
	case p.has(refused) || !announced && stirred, b == nil && p.report.Load() != report:
		look = PollEvery
	case !announced && look == 0 && p.has(flying):
		look = quietLook
	}
	if look > 0 {
		p.lookIn(look)
	}
}

// watched belongs to the watcher: the goroutine that sleeps on a bell of its own, which rings while nobody leads.
// It goes on polling if something has come and polling pays, or if it is told to (want). More is
// likely to come then, such as a conn for Accept: without this, a conn that is dialled, used and closed over shm
// takes seven times as long.
type watched struct {
	waits, joins Waiter                 // as what it polls. Nobody signals them
	want         atomic.Pointer[Waiter] // as what it is to poll, nil if it need not
	turn         chan struct{}          // wakes it while there is no bell
	rung         func() bool            // watch, made once
}

func (w *watched) init(watch func() bool) {
	w.waits, w.joins, w.turn, w.rung = NewWaiter(), NewJoinWaiter(), make(chan struct{}, 1), watch
	w.waits.idle, w.joins.idle = true, true
}

// want has the watcher poll as w. A goroutine started for that would be in the caller's bubble (testing/synctest).
func (p *Poller) want(w *Waiter) {
	p.watched.want.Store(w)
	p.wakeWatcher()
}

func (p *Poller) wakeWatcher() {
	wake(p.watched.turn)
	if b := p.doorbell.Load(); b != nil {
		b.Watcher.Wake()
	}
}

// watching is a goroutine until the Poller is closed.
func (p *Poller) watching() {
	defer close(p.ended)
	for !p.Closing() {
		if b := p.doorbell.Load(); b == nil {
			p.sched.await(p.watched.turn, nil)
		} else if err := b.Watcher.Sleep(p.watched.rung); err != nil {
			p.fail()
		}
		p.pollOn()
	}
}

// watch polls when the watcher begins to sleep, and whenever its bell rings. Sleep calls it: see look. It
// reports whether the watcher must wake.
func (p *Poller) watch() (wakes bool) {
	for try := 0; p.watched.want.Load() == nil && p.doorbell.Load() != nil && !p.Closing(); try++ {
		p.words.Add(1)
		if p.waiter != nil && p.leader.Load() != nil || !p.Acquire() {
			return false
		}
		p.pollAll()
		if p.own.news {
			p.spins.turn(p.clock.Now()) // nobody else may do so if nobody leads
		}
		if p.own.news && p.polls() {
			p.watched.want.Store(&p.watched.waits)
		}
		if p.tryArm(nil) {
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
