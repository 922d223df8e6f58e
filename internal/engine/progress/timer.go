package progress

import (
	"sync/atomic"
	"time"
)

const (
	// PollEvery is how often a queue is polled while only that brings progress.
	PollEvery = time.Millisecond
	// pollJoin is how often one without anything to wait on is polled at first while
	// a peer comes up and nobody polls for it: each step of a handshake would wait for
	// PollEvery. A peer that says nothing gets PollEvery.
	pollJoin = PollEvery / 5
	// joinTime is for how long the end of a path check is polled for, whatever Config.Spin says
	// but that nobody polls. Its steps follow one another in less than that, but each would
	// wait for a tick, since there is no doorbell yet.
	joinTime = 2 * time.Millisecond
	// PollIdle is how seldom one without anything to wait on is polled once nothing
	// has come or gone for a second: after each pollsEach polls the time between them
	// doubles.
	PollIdle  = 16 * time.Millisecond
	pollsEach = 64
)

type timerState int32

const (
	timerOff  timerState = iota // or just expired: tick is going to run
	timerSet                    // to PollEvery at most
	timerSlow                   // to more than that
)

func (s timerState) String() string { return [...]string{"off", "set", "slow"}[s] }

// timer calls Poller.tick.
type timer struct {
	Timer
	state atomic.Int32
}

func (t *timer) is() timerState { return timerState(t.state.Load()) }

func (t *timer) move(from, to timerState) bool {
	return t.state.CompareAndSwap(int32(from), int32(to))
}

// kick makes sure that tick runs soon.
func (p *Poller) kick(after time.Duration) {
	if t := &p.timer; t.is() != timerSet && (t.move(timerOff, timerSet) || t.move(timerSlow, timerSet)) {
		t.Reset(after)
	}
}

// kickLate makes sure that tick runs, be it late.
func (p *Poller) kickLate(after time.Duration) {
	if t := &p.timer; t.is() == timerOff && t.move(timerOff, timerSlow) {
		p.sched.step()
		if t.Reset(after); t.is() == timerSet { // a kick came before Reset
			t.Reset(PollEvery)
		}
	}
}

// pollLater gives ownership up and has tick run again where only that brings progress:
// soon, or less and less often. Where nobody can send anything it does not.
func (p *Poller) pollLater() {
	if p.peers.Load() == 0 && !p.has(flying|refused) {
		p.leave(armed)
		if p.peers.Load() > 0 || p.has(flying|refused) { // they have seen an owner
			p.kick(PollEvery)
		}
		return
	}
	after, most := PollEvery, PollIdle
	joining := p.joining.Load() > 0
	if joining {
		after, most = pollJoin, PollEvery
	}
	o, t := &p.own, &p.timer
	t.state.Store(int32(timerSlow)) // first: what comes from here on is for kick
	report, stirs := p.report.Load(), p.stirs.Load()
	if work := report >> workShift; work != o.work || stirs != o.stirs || !joining && report&(flying|refused) != 0 {
		o.work, o.stirs, o.quiet = work, stirs, 0
	}
	after = min(after<<min(o.quiet/pollsEach, 16), most)
	if after < PollIdle {
		o.quiet++
	}
	p.leave(idle)
	if after <= PollEvery {
		t.state.Store(int32(timerSet))
	}
	t.Reset(after)
	// A kick may have come before Reset, and who reported meanwhile has seen an owner.
	if after > PollEvery && (t.is() == timerSet || p.report.Load() != report) {
		t.state.Store(int32(timerSet))
		t.Reset(PollEvery)
	}
}

// tick looks after a queue that was left unarmed.
func (p *Poller) tick() {
	p.timer.state.Store(int32(timerOff))
	if p.Closing() {
		return
	}
	if p.now() == armed {
		if p.mustPoll() && p.Acquire() {
			p.Poll()
			p.arm()
		}
		return
	}
	visits := p.visits.Load()
	switch {
	case visits != p.seen.Swap(visits): // somebody comes by all the time
		p.kick(busyTick)
	case p.Acquire(): // or it was taken for long: the owner sees to it when leaving
		p.seen.Store(p.visits.Load()) // this one
		p.arm()
	}
}

// mustPoll reports that an armed queue may hear nothing of what is to come.
func (p *Poller) mustPoll() bool {
	return p.has(refused) || p.waiter == nil && (p.has(flying) || p.doorbell.Load() == nil && p.peers.Load() > 0)
}

// Stir says that something is about to happen: the queue is polled soon, and often.
func (p *Poller) Stir() {
	p.stirs.Add(1)
	p.kick(tickAfter)
}

// Join says that a peer comes up, Joined that it has, or never will, and Left that it is
// gone, or was never there.
func (p *Poller) Join() {
	p.peers.Add(1)
	p.joining.Add(1)
	p.stirs.Add(1)
	p.kick(pollJoin)
	if p.waiter != nil {
		p.waiter.Wake() // the sleeper looks often again while the two meet
	}
}

// patient is for how long to poll for a peer that comes up, where budget is usual.
func (p *Poller) patient(budget time.Duration) time.Duration {
	if p.spin > 0 {
		return max(budget, joinTime)
	}
	return budget
}

// Expect says that a peer which comes up is about to send something, and that nobody waits for
// it: the background goroutine polls for a while.
func (p *Poller) Expect() {
	p.expected.Store(true)
	p.wakeBackground()
	if p.waiter != nil {
		p.waiter.Wake()
	}
}

// Joined follows Join.
func (p *Poller) Joined() { p.joining.Add(-1) }

// Left follows Joined.
func (p *Poller) Left() { p.peers.Add(-1) }
