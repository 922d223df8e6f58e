package progress

import (
	"sync/atomic"
	"time"
)

const (
	// PollEvery is the time between polls of a queue while only polling brings progress.
	PollEvery = time.Millisecond
	// pollJoin is the time between polls at first, for a queue without anything to wait on, while
	// a peer is coming up and nobody polls for it: otherwise each step of a handshake would wait
	// for PollEvery. If the peer says nothing, the time becomes PollEvery.
	pollJoin = PollEvery / 5
	// joinTime is how long a wait for the end of a path check polls at least, whatever Config.Spin
	// is, unless that says that nobody polls. The steps of a path check follow one another in less
	// than that, but each would wait for a tick, since there is no doorbell yet.
	joinTime = 2 * time.Millisecond
	// PollIdle is the time between polls of a queue without anything to wait on once nothing has
	// come or gone for a second: after every pollsEach polls the time between them doubles.
	PollIdle  = 16 * time.Millisecond
	pollsEach = 64
)

type timerState int32

const (
	timerOff  timerState = iota // or it has just expired, and tick is going to run
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

// kick makes sure that tick runs soon: after the given time, or at the time at which it is already set.
func (p *Poller) kick(after time.Duration) {
	if t := &p.timer; t.is() != timerSet && (t.move(timerOff, timerSet) || t.move(timerSlow, timerSet)) {
		t.Reset(after)
	}
}

// pollLater gives up ownership, and has tick run again, where only that brings progress: soon, or
// less and less often. If nobody can send anything, tick does not run.
func (p *Poller) pollLater() {
	if p.peers.Load() == 0 && !p.has(flying|refused) {
		p.leave(armed)
		if p.peers.Load() > 0 || p.has(flying|refused) { // they came while they could see an owner
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
	t.state.Store(int32(timerSlow)) // first: kick sees to whatever comes from here on
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
	// A kick may have come before Reset, and a goroutine that reported meanwhile saw an owner.
	if after > PollEvery && (t.is() == timerSet || p.report.Load() != report) {
		t.state.Store(int32(timerSet))
		t.Reset(PollEvery)
	}
}

// tick looks after a queue that was left unarmed, and one that is armed but may hear of nothing.
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
	case visits != p.seen.Swap(visits): // somebody keeps coming by
		p.kick(busyTick)
	case p.Acquire(): // if not, the owner has had it for long, and sees to it when leaving
		p.seen.Store(p.visits.Load()) // our own visit does not count
		p.arm()
	}
}

// mustPoll reports whether an armed queue has to be polled because nothing may announce what is to come.
func (p *Poller) mustPoll() bool {
	return p.has(refused) || p.waiter == nil && p.doorbell.Load() == nil && (p.has(flying) || p.peers.Load() > 0)
}

// Stir says that something is about to happen, so that the queue is polled soon, and often.
func (p *Poller) Stir() {
	p.stirs.Add(1)
	p.kick(tickAfter)
}

// Join says that a peer is coming up, Joined that it has come up or never will, and Left that it
// is gone or was never there.
func (p *Poller) Join() {
	p.peers.Add(1)
	p.joining.Add(1)
	p.stirs.Add(1)
	p.kick(pollJoin)
	if p.waiter != nil {
		p.waiter.Wake() // the sleeper looks often again while the peer comes up
	}
}

// patient returns how long to poll for a peer that is coming up, where budget is the usual time.
func (p *Poller) patient(budget time.Duration) time.Duration {
	if p.spin > 0 {
		return max(budget, joinTime)
	}
	return budget
}

// Expect says that a peer that is coming up is about to send something, and that nobody waits for
// it. The background goroutine then polls for a while.
func (p *Poller) Expect() {
	p.expected.Store(true)
	p.wakeBackground()
	if p.waiter != nil {
		p.waiter.Wake()
	}
}

// Joined follows Join: see there.
func (p *Poller) Joined() { p.joining.Add(-1) }

// Left follows Joined: see Join.
func (p *Poller) Left() { p.peers.Add(-1) }
