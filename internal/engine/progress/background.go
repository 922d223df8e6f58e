package progress

import "time"

// A sleeper on a wait fd looks again by itself after firstLook, or quietLook where nothing
// is expected, then less and less often up to lastLook: providers that make progress only
// when called (all of software) have work now and then, such as a connection that rxm sets
// up, for which the descriptor does not become readable. It goes on for as long as a peer
// comes up or own operations are in flight, and else, but for providers that need it
// always, sleeps until it is woken. Heartbeats change nothing of that.
const (
	firstLook = 2 * time.Millisecond
	quietLook = 16 * time.Millisecond
	lastLook  = 64 * time.Millisecond
)

// lookEvery is how often Look does something at most, however many peers there are.
const lookEvery = time.Second

// Look is called now and then, as by heartbeats: should the wait fd have failed to tell of
// something, that is found at the second Look in a row that nobody has come by between.
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
	found bool          // by look
	news  bool          // likewise, and it was more than heartbeats
	began time.Duration // when it was woken last
	tick  time.Duration // until it looks by itself; 0: it was woken
	looks func() bool   // Poller.look, made once
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

// sleep waits for an arrival on an armed queue, or until it is time to look again. It
// returns false when the queue belongs to somebody, who will arm it again.
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
		p.deep.Store(true) // look sees what has been reported since
	}
	s.found = false
	err := p.waiter.Wait(s.looks, most)
	p.deep.Store(false)
	p.resting.Store(false)
	glanced := p.glances.Swap(false) && !s.found
	switch {
	case s.found && !s.news || glanced: // as it was
	case s.found || most == 0 || p.clock.Now()-start < most:
		s.tick = 0 // it did not look by itself
	}
	switch {
	case err != nil: // no way to sleep: poll
		p.move(armed, idle)
		p.kick(PollEvery)
		return false
	case s.found:
		p.pollForOthers(s.news, false)
	}
	return !p.Closing() && p.now() == armed // it is to look again
}

// look is what sleep's Wait calls. Where it returns false, Wait sleeps if that is
// safe (fi_trywait), and else calls it again.
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
	// What was reported while we were the owner has been left to us.
	if p.has(refused) {
		p.kick(PollEvery)
	}
	p.wakeDeep()
	return false
}

// wakeDeep has a sleeper look by itself again if there is something to look for.
func (p *Poller) wakeDeep() {
	if p.has(flying) && p.deep.CompareAndSwap(true, false) {
		p.waiter.Wake()
	}
}

// pollForOthers polls for a while on behalf of others, after an arrival woke a
// background goroutine, and arms again: at once, unless there is news, which has come or
// is about to. A goroutine that waits for its conn takes over whenever it likes. For a peer that
// comes up it takes more time.
func (p *Poller) pollForOthers(news, joins bool) {
	var ours uint32 // what we have lent, 0 if we may not spin
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
	// One look in any case: a driver that is about to park may have looked
	// before what we were woken for arrived, and counts on us.
	for i := 1; (i == 1 || p.drivers.Load() == 0) && !p.Closing() && p.Acquire(); i++ {
		visits++ // this one
		n := p.Poll()
		news = news || p.own.news
		spin := news && ours != 0 && p.lent.Load() == ours
		if n > 0 && !spin && p.waiter == nil {
			// Whom this has woken is to have our processor, and not to be moved to another one.
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
		if joins && i >= politePolls && i%clockEach == 0 { // the peer may need this processor to send what we wait for
			p.sched.yieldThread()
		}
		if p.now() == armed {
			return // whom this woke has waited again since
		}
	}
	// Whoever drives now leaves the queue armed or ticking. The driver that was
	// seen may just have given up, though.
	p.kick(tickAfter)
}

// leavePoll gives ownership up at the end of pollForOthers.
func (p *Poller) leavePoll(visited bool) {
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
