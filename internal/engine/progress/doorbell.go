package progress

import (
	"sync/atomic"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// Doorbell wakes a peer process whose provider has nothing to wait on. The zero Doorbell is
// for providers that have a wait fd.
type Doorbell struct {
	// Own is this side's flag, in memory that both processes map, and Peer is the other side's
	// (SPEC.md section 8).
	Own, Peer *atomic.Uint32
	// Ring rings one of the peer's two bells: the leader's, or the watcher's.
	Ring func(leader bool)
	// Bell is this side's bell for the leader. If it is nil, nobody leads.
	Bell Bell
}

// Bell is what the leader sleeps on: see lead.go.
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
func (p *Poller) SetDoorbell(b *Doorbell) { p.doorbell.Store(b) }

// bell returns what the leader sleeps on, nil if there is nothing. Own and Peer are nil with a wait object.
func (p *Poller) bell() *Doorbell {
	if p.object != nil {
		if p.deaf.Load() {
			return nil
		}
		return p.object
	}
	if b := p.doorbell.Load(); b != nil && b.Bell != nil {
		return b
	}
	return nil
}

// led makes the flag say led, unless it says awake.
func (b *Doorbell) led() bool {
	return b.Own.CompareAndSwap(doorbellAsleep, doorbellLed) || b.Own.Load() == doorbellLed
}

// awake tells the peer that it need not ring.
func (p *Poller) awake() {
	if b := p.doorbell.Load(); b != nil {
		b.Own.Store(doorbellAwake)
	}
}
