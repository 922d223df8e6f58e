package engine

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// Over shared memory, what Write has returned for arrives even if the process ends: a frame that is
// injected, and bytes in a mapped ring, outlive their sender. Small data that waits for a receive
// slot would not, and making each Write wait for a slot would cost streams of small writes half
// their rate. So that data is spilled: it lies in memory that both processes map, too, until its
// frame is posted. A side that has lost its peer, and has taken in whatever was posted, takes in
// what the peer has spilled (SPEC.md section 8).

const (
	// spillSlots is how many streams of a peer can have data waiting. The writers of others wait.
	spillSlots = 16
	// spillSlot is the size of the data of each, and what says where it belongs.
	spillSlot   = 4096
	spillHeader = 16
	// SpillSize is how much memory a side's spilled data takes, in bytes.
	SpillSize = spillSlots * spillSlot
)

// Spill is the memory for spilled data of this side and of the peer, SpillSize bytes each, which
// both processes map. The zero Spill is for providers that reach other hosts.
type Spill struct{ Own, Peer []byte }

// spilling is a peer's Spill, and which of its own slots are in use.
type spilling struct {
	spill   Spill
	spilled uint32 // a bit for each slot
}

// maySpill reports whether there is a free slot.
func (p *spilling) maySpill() bool { return p.spill.Own != nil && p.spilled != 1<<spillSlots-1 }

// slotOf returns one of the slots.
func slotOf(mem []byte, i int) []byte { return mem[i*spillSlot:][:spillSlot] }

// lengthOf is the length of the data in a slot. It is written last, so that it says nothing that is
// not there, whenever the process ends.
func lengthOf(slot []byte) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&slot[4])) }

// beginSpill takes a slot for data of the stream from pos on, and returns its number.
func (p *spilling) beginSpill(stream uint32, pos uint64) int {
	i := 0
	for p.spilled&(1<<i) != 0 {
		i++
	}
	p.spilled |= 1 << i
	slot := slotOf(p.spill.Own, i)
	lengthOf(slot).Store(0)
	binary.LittleEndian.PutUint32(slot, stream)
	binary.LittleEndian.PutUint64(slot[8:], pos)
	return i
}

// addSpill adds to the data in slot i.
func (p *spilling) addSpill(i int, b []byte) {
	slot := slotOf(p.spill.Own, i)
	n := lengthOf(slot).Load()
	copy(slot[spillHeader+n:], b)
	lengthOf(slot).Store(n + uint32(len(b)))
}

// endSpill frees slot i: its data is posted, or given up. A writer that waits for a slot stands in no
// line, unlike one that waits for slots of the peer's.
func (p *peer) endSpill(i int) {
	if p.spill.Own != nil {
		lengthOf(slotOf(p.spill.Own, i)).Store(0)
	}
	p.spilled &^= 1 << i
	if p.blocked.len() > 0 {
		p.c.touch(p)
	}
}

// salvage takes in what the peer had spilled when it was lost. All that it had posted has been taken
// in before. The peer may write there at any time, so everything is copied and then checked.
func (p *peer) salvage() {
	if p.spill.Peer == nil || p.err != nil {
		return
	}
	var slot [spillSlot]byte
	for took := true; took; { // of one stream there may be more than one slot, in any order
		took = false
		for i := range spillSlots {
			n := lengthOf(slotOf(p.spill.Peer, i)).Load()
			if n == 0 || n > spillSlot-spillHeader {
				continue
			}
			copy(slot[:], slotOf(p.spill.Peer, i)[:spillHeader+n])
			if lengthOf(slotOf(p.spill.Peer, i)).Load() != n { // the peer lives, and uses the slot
				continue
			}
			s := p.streams[binary.LittleEndian.Uint32(slot[:])]
			if s == nil || s.discarding() || s.recv > recvFin || binary.LittleEndian.Uint64(slot[8:]) != s.rcvNxt {
				continue
			}
			if s.takeSmall(slot[spillHeader:][:n]) != nil || s.advance() != nil {
				p.c.stats.Violations++
				return
			}
			took = true
		}
	}
}
