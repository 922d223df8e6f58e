package progress

import "time"

// A sleeper on a wait fd looks again by itself after firstLook, or after quietLook if nothing is
// expected, and then less and less often: the time between looks doubles up to lastLook. Providers
// that make progress only when called (all those in software) now and then have work for which the
// descriptor does not become readable, such as a connection that rxm sets up. The sleeper goes on
// looking for as long as a peer is coming up, or own operations are in flight or refused, and always
// with Config.Ticks. Otherwise it then sleeps until it is woken. Heartbeats do not change that.
const (
	firstLook = 2 * time.Millisecond
	quietLook = 16 * time.Millisecond
	lastLook  = 64 * time.Millisecond
)

// lookEvery is the least time between two calls of Look that do something, however many peers
// there are.
const lookEvery = time.Second

// Look is called now and then, for instance on heartbeats. Should the wait fd have failed to
// announce something, Look finds that once nobody has acquired the queue since the Look before.
func (p *Poller) Look() {
	at, last := p.clock.Now(), p.lookedAt.Load()
	if last != 0 && at-time.Duration(last) < lookEvery || !p.lookedAt.CompareAndSwap(last, int64(at)) {
		return
	}
	if v := p.visits.Load(); v == p.looked.Swap(v) && p.waiter != nil && p.now() == armed {
		p.glances.Store(true)
		p.waiter.Wake()
	}
}

// sleeper is what belongs to the background goroutine.
type sleeper struct {
	found bool          // look has found something
	news  bool          // and it was more than heartbeats
	began time.Duration // when it began to sleep after it was last woken
	tick  time.Duration // how long it sleeps before it looks by itself; 0: it was woken
	looks func() bool   // Poller.look, made once
}

// wakeBackground sends the background goroutine to its work: to sleep on the wait fd, or
// to poll for a while if there is none.
func (p *Poller) wakeBackground() {
	select {
	case p.park <- struct{}{}:
	default:
	}
}

// background sleeps on the wait fd while the queue is armed. Where there is no fd, the
// doorbell's reader is the one that is woken, and background only does the polling that
// Settle and Expect ask for.
func (p *Poller) background() {
	defer close(p.gone)
	for {
		p.sched.await(p.park, p.done)
		if p.Closing() {
			return
		}
		if p.waiter == nil {
			p.pollForOthers(true, p.expected.Swap(false))
			continue
		}
		for p.sleep() {
		}
	}
}

// sleep waits for an arrival on an armed queue, or until it is time to look again. It returns
// false once the queue is no longer armed: somebody has it, and will arm it again, or the timer
// polls it, or it is over.
func (p *Poller) sleep() bool {
	if p.expected.Swap(false) {
		p.pollForOthers(true, true)
		return !p.Closing() && p.now() == armed
	}
	s, start := &p.sleeper, p.clock.Now()
	expects := p.ticks || p.has(flying|refused) || p.joining.Load() > 0
	switch {
	case s.tick > 0:
		s.tick = min(2*s.tick, lastLook)
	case expects:
		s.began, s.tick = start, firstLook
	default:
		s.began, s.tick = start, quietLook
	}
	most := s.tick
	if most == lastLook && !expects {
		most = 0
		p.deep.Store(true) // look, which comes next, sees what has been reported since
	}
	s.found = false
	err := p.waiter.Wait(s.looks, most)
	p.deep.Store(false)
	p.resting.Store(false)
	glanced := p.glances.Swap(false) && !s.found
	switch {
	case s.found && !s.news || glanced: // s.tick stays as it is
	case s.found || most == 0 || p.clock.Now()-start < most:
		s.tick = 0 // it did not look by itself
	}
	switch {
	case err != nil: // it cannot sleep: the timer polls
		p.move(armed, idle)
		p.kick(PollEvery)
		return false
	case s.found:
		p.pollForOthers(s.news, false)
	}
	return !p.Closing() && p.now() == armed // it has to look again
}

// look is called by the Wait in sleep. When it returns false, Wait sleeps if that is safe
// (fi_trywait), and otherwise calls it again.
func (p *Poller) look() bool {
	p.resting.Store(false)
	if p.Closing() || p.expected.Load() || !p.Acquire() {
		return true
	}
	s := &p.sleeper
	if s.found = p.Poll() > 0; s.found {
		s.news = p.own.news
		p.leave(idle)
		return true
	}
	p.own.rested, p.own.restedAt = s.began, p.own.polls
	p.resting.Store(true)
	p.leave(armed)
	// While we were the owner, what was reported has been left to us.
	if p.has(refused) {
		p.kick(PollEvery)
	}
	p.wakeDeep()
	return false
}

// wakeDeep makes a deep sleeper look by itself again if there is something to look for.
func (p *Poller) wakeDeep() {
	if p.has(flying) && p.deep.CompareAndSwap(true, false) {
		p.waiter.Wake()
	}
}

// pollForOthers polls for a while on behalf of others, after an arrival has woken a background
// goroutine, and then arms the queue again. It arms at once unless there is news: something other
// than heartbeats has come, or (the argument) is about to. A goroutine that waits for its own conn
// takes over whenever it likes. If joins is set, a peer is coming up, and it polls for longer.
func (p *Poller) pollForOthers(news, joins bool) {
	var ours uint32 // the number of the permission that we have lent, 0 if we may not spin
	budget := time.Duration(p.budget.Load()) / 2
	if joins {
		budget = p.patient(budget)
	}
	if budget > 0 && p.spins.start() {
		if ours = p.lend(); ours == 0 {
			p.spins.stop()
		}
		defer func() {
			if ours != 0 && p.lent.CompareAndSwap(ours, 0) {
				p.spins.stop()
			}
		}()
	}
	start, visits := p.clock.Now(), p.visits.Load()
	// Poll once even if there are drivers: one that is about to park may have polled before
	// what woke us arrived, and counts on us.
	for i := 1; (i == 1 || p.drivers.Load() == 0) && !p.Closing() && p.Acquire(); i++ {
		visits++ // our own
		n := p.Poll()
		news = news || p.own.news
		spin := news && ours != 0 && p.lent.Load() == ours
		if n > 0 && !spin && p.waiter == nil {
			// Do not yield: the goroutine that this has woken should get our processor once we are
			// done, rather than be moved to another one.
			n = p.Poll()
			news = news || p.own.news
		}
		if n == 0 && (!spin || p.inVain(i, start, budget)) {
			p.leavePoll(spin && visits != p.visits.Load())
			return
		}
		p.leave(idle)
		if n > 0 {
			start, visits = p.clock.Now(), p.visits.Load()
		}
		p.sched.yield()
		if joins && i >= politePolls && i%clockEach == 0 { // the peer may need this processor, to send what we wait for
			p.sched.yieldThread()
		}
		if p.now() == armed {
			return // the goroutine that this woke has come back since, and armed the queue
		}
	}
	// A goroutine that drives now leaves the queue armed, or to the timer. But the driver that
	// we saw may just have given up.
	p.kick(tickAfter)
}

// leavePoll gives up ownership at the end of pollForOthers. visited says that others have
// acquired the queue meanwhile.
func (p *Poller) leavePoll(visited bool) {
	switch {
	case visited:
		p.Release() // they are likely to come again: see tick
	case p.waiter != nil:
		p.polled.Store(p.own.polls)
		p.leave(armed) // the caller then sleeps on the wait fd
	default:
		p.arm()
	}
}
