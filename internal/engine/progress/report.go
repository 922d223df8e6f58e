package progress

// Report is what the endpoint tells after each use of its state.
type Report struct {
	Refused bool   // the fabric has refused something, and only a poll offers it again
	Flying  bool   // own operations are in flight: the peer is to ring when they are done
	Held    bool   // a write is held back until the peer has run out of data
	Work    uint64 // posted and reaped so far
}

// Poller.report is the last Report in one word.
const (
	refused = 1 << iota
	flying
	held
	workShift = iota
)

func (r *Report) word() uint64 {
	w := r.Work << workShift
	if r.Refused {
		w |= refused
	}
	if r.Flying {
		w |= flying
	}
	if r.Held {
		w |= held
	}
	return w
}

// has looks at flags of the last report.
func (p *Poller) has(flags uint64) bool { return p.report.Load()&flags != 0 }

// Note takes a report, and says whether Kick must be called. Reports come one after the
// other, under the endpoint's lock; Kick is for when that has been released.
func (p *Poller) Note(r Report) (kick bool) {
	now := r.word()
	then := p.report.Swap(now) // the fence before the look at the timer, or at the state
	if r.Held != (then&held != 0) {
		if r.Held {
			p.tellHeld()
		} else {
			p.doorbell.Load().Own.CompareAndSwap(doorbellHeld, doorbellAwake)
		}
	}
	if b := p.doorbell.Load(); r.Flying && b != nil && !p.Closing() {
		b.sleepFlying()
	}
	return r.Refused || r.Flying && (p.waiter == nil || p.deep.Load()) || now>>workShift != then>>workShift && p.timer.is() == timerSlow
}

// Kick has the queue polled soon, if nobody does.
func (p *Poller) Kick() {
	switch {
	case p.now().taken():
	case p.has(refused) || p.waiter == nil && p.doorbell.Load() == nil:
		p.kick(PollEvery)
	case p.waiter == nil:
		p.kickLate(lastLook)
	default:
		p.wakeDeep()
	}
}
