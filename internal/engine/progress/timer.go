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
	// The timer looks at an armed queue with a wait object firstLook after somebody has polled it if a
	// peer is coming up, else after quietLook, and then less and less often: the time between looks
	// doubles up to lastLook. Providers that make progress only when called (all those in software) now
	// and then have work for which the descriptor does not become readable, such as a connection that
	// rxm sets up. The timer goes on looking for as long as a peer is coming up, or own operations are in
	// flight or refused, and always with Config.Ticks.
	firstLook = 2 * time.Millisecond
	quietLook = 16 * time.Millisecond
	lastLook  = 64 * time.Millisecond
	looks     = 3 // of which the last comes after lastLook, if nothing is expected
	// PollIdle is the time between polls of a queue without anything to wait on once nothing has
	// come or gone for a second: after every pollsEach polls the time between them doubles.
	PollIdle  = 16 * time.Millisecond
	pollsEach = 64
)

type timerState int32

const (
	timerOff  timerState = iota // or it has just expired, and tick is going to run
	timerSet                    // to PollEvery at most
	timerSlow                   // to more than that, perhaps
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

// lookIn makes sure that tick runs after d, or at the time at which it is already set.
func (p *Poller) lookIn(d time.Duration) {
	t := &p.timer
	if d <= PollEvery {
		p.kick(d)
	} else if t.move(timerOff, timerSlow) {
		p.sched.step()
		t.Reset(d)
		if t.is() == timerSet { // a kick came before Reset
			t.Reset(PollEvery)
		}
	}
}

// nextLook returns when the timer looks at a queue that is left armed, 0 if it need not. The owner calls it.
func (p *Poller) nextLook() time.Duration {
	o, b := &p.own, p.doorbell.Load()
	report, stirs, joining := p.report.Load(), p.stirs.Load(), p.joining.Load() > 0
	if work := report >> workShift; work != o.work || stirs != o.stirs {
		o.work, o.stirs, o.quiet = work, stirs, 0
	}
	flies := report&(flying|refused) != 0
	switch {
	case b == nil && joining:
		return min(pollJoin<<min(o.quiet/pollsEach, 16), PollEvery)
	case b == nil && flies:
		return PollEvery
	case b == nil && p.peers.Load() > 0:
		return min(PollEvery<<min(o.quiet/pollsEach, 16), PollIdle)
	case b == nil || b.Own != nil: // nobody can send anything, or doorbells announce everything
		return 0
	case joining:
		return min(firstLook<<min(o.quiet, 16), lastLook)
	case o.quiet < looks || flies || p.ticks:
		return min(quietLook<<min(o.quiet, 16), lastLook)
	}
	return 0
}

// Look is called now and then, for instance on heartbeats. Should the wait object have failed to
// announce something, the timer finds that soon.
func (p *Poller) Look() {
	if p.waiter != nil && p.doorbell.Load() != nil {
		p.lookIn(lastLook)
	}
}

// tick looks after a queue that was left idle, and one that is armed but may hear of nothing.
func (p *Poller) tick() {
	p.timer.state.Store(int32(timerOff))
	was := p.now()
	if p.Closing() || was == armed && !p.mustLook() || !p.Acquire() { // an owner sees to it when leaving
		return
	}
	o := &p.own
	visited := o.visits != o.seen+1
	o.seen = o.visits
	if was == idle && visited && p.doorbell.Load() != nil { // somebody keeps coming by
		p.leave(idle)
		p.kick(PollEvery)
		return
	}
	o.quiet++
	p.arm()
}

// mustLook reports whether the timer has to poll an armed queue, since nothing may announce what is to come.
func (p *Poller) mustLook() bool {
	return p.has(refused) || p.waiter != nil || p.doorbell.Load() == nil && (p.has(flying) || p.peers.Load() > 0)
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
}

// patient returns how long to poll for a peer that is coming up, where budget is the usual time.
func (p *Poller) patient(budget time.Duration) time.Duration {
	if p.spin > 0 {
		return max(budget, joinTime)
	}
	return budget
}

// Joined follows Join: see there.
func (p *Poller) Joined() { p.joining.Add(-1) }

// Left follows Joined: see Join.
func (p *Poller) Left() { p.peers.Add(-1) }
