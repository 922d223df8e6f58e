package progress

// Report is what the endpoint reports after each use of its state.
type Report struct {
	Refused bool   // the fabric has refused something, and only a poll offers it again
	Flying  bool   // own operations are in flight
	Work    uint64 // posted and reaped so far
}

// Poller.report is the last Report in one word: these flags, and Work from workShift on.
const (
	refused = 1 << iota
	flying
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
	return w
}

// has reports whether the last report had any of these flags.
func (p *Poller) has(flags uint64) bool { return p.report.Load()&flags != 0 }

// Note takes a report, and returns whether Kick must be called. The caller holds the endpoint's
// lock, so that reports come one after the other, and calls Kick once it has released the lock.
func (p *Poller) Note(r Report) (kick bool) {
	now := r.word()
	then := p.report.Swap(now) // also the fence before the looks at the flag, the timer and, in Kick, the state
	switch b := p.doorbell.Load(); {
	case r.Refused:
		return true
	case b == nil:
		return r.Flying || now>>workShift != then>>workShift && p.timer.is() == timerSlow
	default:
		return b.Own == nil && r.Flying && p.timer.is() == timerOff
	}
}

// Kick has the queue polled soon, unless somebody owns it.
func (p *Poller) Kick() {
	switch {
	case p.now().taken():
	case p.has(refused) || p.doorbell.Load() == nil:
		p.kick(PollEvery)
	default:
		p.lookIn(quietLook)
	}
}
