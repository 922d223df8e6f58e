package progress

import (
	"sync/atomic"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// Doorbell is what two processes wake each other by if their provider has nothing to wait on. The zero Doorbell
// is for providers that have a wait object.
type Doorbell struct {
	// Own is this side's flag, in memory that both processes map, and Peer is the other side's
	// (SPEC.md section 8). Both are nil in the Poller's own Doorbell, which has the bells of a wait object.
	Own, Peer *atomic.Uint32
	// Ring rings one of the peer's two bells: the leader's, or the watcher's.
	Ring func(leader bool)
	// Bell is what this side's leader sleeps on, and Watcher what its watcher does.
	Bell, Watcher Bell
}

// Bell is what a goroutine sleeps on.
type Bell = fabric.Bell

// Values of a flag say which bell its side wants to be rung when the other side has posted something.
const (
	doorbellAwake  = iota // none: somebody polls, or will
	doorbellAsleep        // the watcher's
	doorbellLed           // the leader's
)

// Disarm reports whether the peer sleeps, and so has to be rung for what was posted, and which bell
// is to be rung; it sets the peer's flag to awake. The swap is also the fence between the post and the
// look at the flag.
func (b *Doorbell) Disarm() (asleep, led bool) {
	flag := b.Peer.Swap(doorbellAwake)
	return flag != doorbellAwake, flag == doorbellLed
}

// SetDoorbell sets the doorbell, once the peer has one.
func (p *Poller) SetDoorbell(b *Doorbell) {
	p.doorbell.Store(b)
	wake(p.watched.turn) // the watcher sleeps on its bell from now on
}

// led makes the flag say led, unless it says awake.
func (b *Doorbell) led() bool {
	return b.Own.CompareAndSwap(doorbellAsleep, doorbellLed) || b.Own.Load() == doorbellLed
}

// awake tells the peer that it need not ring.
func (p *Poller) awake() {
	if b := p.doorbell.Load(); b != nil && b.Own != nil {
		b.Own.Store(doorbellAwake)
	}
}
