package progress

import "sync/atomic"

// Doorbell wakes a peer process whose provider has nothing to wait on. The zero
// Doorbell is for providers that have.
type Doorbell struct {
	// Own is this side's flag in memory that both processes map, Peer the other
	// side's (SPEC.md section 8).
	Own, Peer *atomic.Uint32
	// Ring rings the peer's doorbell.
	Ring func()
}

// Values of a flag: when its side wants to hear the doorbell.
const (
	doorbellAwake  = iota // not now: somebody polls, or will
	doorbellAsleep        // when something was posted
	doorbellHeld          // when the other side has run out of data
	doorbellFlying        // both: it sleeps, and own operations are in flight
)

// Disarm reports that the peer sleeps, and has to be rung for what was posted. The swap
// is the fence before the look at the flag.
func (b *Doorbell) Disarm() bool {
	return b.Peer.CompareAndSwap(doorbellAsleep, doorbellAwake) || b.Peer.CompareAndSwap(doorbellFlying, doorbellAwake)
}

// sleepFlying has a side that sleeps hear of the end of what it has posted since.
func (b *Doorbell) sleepFlying() {
	if b.Own.Load() == doorbellAsleep {
		b.Own.CompareAndSwap(doorbellAsleep, doorbellFlying)
	}
}

// SetDoorbell is called once the peer has a doorbell.
func (p *Poller) SetDoorbell(b *Doorbell) { p.doorbell.Store(b) }

// Doorbell says that the peer has rung. It polls.
func (p *Poller) Doorbell() {
	p.doorbells.Add(1)
	p.pollForOthers(false, false)
}

// awake tells the peer that nobody needs to be rung for.
func (p *Poller) awake() {
	if b := p.doorbell.Load(); b != nil {
		b.Own.Store(doorbellAwake)
		p.tellHeld()
	}
}

// tellHeld has the peer ring if it runs out of data while a write is held
// back here.
func (p *Poller) tellHeld() {
	if p.has(held) {
		p.doorbell.Load().Own.CompareAndSwap(doorbellAwake, doorbellHeld)
	}
}

// nudge rings a peer that holds a write back, or sleeps with operations in flight, which are
// done: there is nothing left to do here.
func (p *Poller) nudge(flag uint32) (rung bool) {
	b := p.doorbell.Load()
	if b == nil || b.Peer.Load() != flag || !b.Peer.CompareAndSwap(flag, doorbellAwake) {
		return false
	}
	b.Ring()
	return true
}
