package progress

import "sync/atomic"

// Doorbell wakes a peer process whose provider has nothing to wait on. The zero Doorbell is
// for providers that have a wait fd.
type Doorbell struct {
	// Own is this side's flag, in memory that both processes map, and Peer is the other side's
	// (SPEC.md section 8).
	Own, Peer *atomic.Uint32
	// Ring rings the peer's doorbell.
	Ring func()
}

// Values of a flag say when its side wants its doorbell to be rung.
const (
	doorbellAwake  = iota // not now: somebody polls, or will
	doorbellAsleep        // when the other side has posted something
)

// Disarm reports whether the peer sleeps, and so has to be rung for what was posted; if so, it
// sets the peer's flag to awake. The compare-and-swap is also the fence between the post and the
// look at the flag.
func (b *Doorbell) Disarm() bool {
	return b.Peer.CompareAndSwap(doorbellAsleep, doorbellAwake)
}

// SetDoorbell sets the doorbell, once the peer has one.
func (p *Poller) SetDoorbell(b *Doorbell) { p.doorbell.Store(b) }

// Doorbell is called when the peer has rung. It polls.
func (p *Poller) Doorbell() {
	p.doorbells.Add(1)
	p.pollForOthers(false, false)
}

// awake tells the peer that it need not ring.
func (p *Poller) awake() {
	if b := p.doorbell.Load(); b != nil {
		b.Own.Store(doorbellAwake)
	}
}
