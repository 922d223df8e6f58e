package progress

import "sync/atomic"

// Bell wakes a peer process whose provider has nothing to wait on. The zero
// Bell is for providers that have.
type Bell struct {
	// Own is this side's flag in memory that both processes map, Peer the other
	// side's (SPEC.md section 8).
	Own, Peer *atomic.Uint32
	// Ring rings the peer's doorbell.
	Ring func()
}

// Values of a flag: when its side wants to hear the doorbell.
const (
	bellAwake  = iota // not now: somebody polls, or will
	bellAsleep        // when something was posted
	bellHeld          // when the other side has run out of data
	bellFlying        // both: it sleeps, and own operations are in flight
)

// Rouse reports that the peer sleeps, and has to be rung for what was posted. The swap
// is the fence before the look at the flag.
func (b *Bell) Rouse() bool {
	return b.Peer.CompareAndSwap(bellAsleep, bellAwake) || b.Peer.CompareAndSwap(bellFlying, bellAwake)
}

// sleepFlying has a side that sleeps hear of the end of what it has posted since.
func (b *Bell) sleepFlying() {
	if b.Own.Load() == bellAsleep {
		b.Own.CompareAndSwap(bellAsleep, bellFlying)
	}
}

// SetBell is called once the peer has a doorbell.
func (p *Poller) SetBell(b *Bell) { p.bell.Store(b) }

// Doorbell says that the peer has rung. It polls.
func (p *Poller) Doorbell() {
	p.bells.Add(1)
	p.attend(false, false)
}

// awake tells the peer that nobody needs to be rung for.
func (p *Poller) awake() {
	if b := p.bell.Load(); b != nil {
		b.Own.Store(bellAwake)
		p.tellHeld()
	}
}

// tellHeld has the peer ring if it runs out of data while a write is held
// back here.
func (p *Poller) tellHeld() {
	if p.has(held) {
		p.bell.Load().Own.CompareAndSwap(bellAwake, bellHeld)
	}
}

// nudge rings a peer that holds a write back, or sleeps with operations in flight, which are
// done: there is nothing left to do here.
func (p *Poller) nudge(flag uint32) (rung bool) {
	b := p.bell.Load()
	if b == nil || b.Peer.Load() != flag || !b.Peer.CompareAndSwap(flag, bellAwake) {
		return false
	}
	b.Ring()
	return true
}
