package engine

import (
	"fmt"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// ctlFrame is a control frame that waits for a slot.
type ctlFrame struct {
	t       framing.Type
	flags   framing.Flags
	stream  uint32
	pos     uint64
	n       uint8
	payload [framing.LeaseSize]byte
	leaves  *stream // see stream.leaving
	spill   int     // see txOp
}

// frame builds a frame in a send slot and queues it, or reports false if there is no send
// slot for it. The caller has checked that the peer has a receive slot for the frame; paid says
// that this slot was taken before.
func (p *peer) frame(f *ctlFrame, s *stream, payload []byte, paid bool) bool {
	if !p.mayFrame() {
		p.lackSends()
		return false
	}
	slot, _ := p.c.tx.Get()
	n := copy(p.c.tx.Bytes(slot)[framing.HeaderSize:], payload)
	p.queue(f, s, slot, n, paid)
	return true
}

// queue queues the frame whose n bytes of payload are in slot already. paid is as in frame.
func (p *peer) queue(f *ctlFrame, s *stream, slot uint32, n int, paid bool) {
	h := framing.Header{
		Type: f.t, Flags: f.flags, Length: uint16(n), Peer: p.theirs, Proof: p.proofOut,
		Stream: f.stream, Slots: p.granted, Pos: f.pos,
	}
	if s != nil {
		h.Window, h.Ring = s.tell()
	}
	p.advertised = p.granted
	if !paid {
		p.used++
	}
	c := p.c
	buf := c.tx.Bytes(slot)[:framing.HeaderSize+n]
	h.Encode(buf)
	op := fabric.Op{Kind: fabric.Send, To: p.addr, Buf: buf, Desc: c.tx.Desc(slot)}
	if len(buf) <= c.attr.InjectSize {
		op.Kind = fabric.Inject
	}
	c.stats.FramesSent++
	p.holdSends(1, 0)
	p.out = append(p.out, outOp{op, txOp{peer: p, leaves: f.leaves, spill: f.spill, from: c.tx, slot: slot}})
}

// control queues a control frame.
func (p *peer) control(f ctlFrame) {
	if p.err != nil {
		return
	}
	if p.ctl.len() >= maxControl+8*len(p.streams) {
		p.c.stats.Violations++
		p.doom(fmt.Errorf("%w: it asks for answers and takes none", errProtocol))
		return
	}
	p.ctl.push(f)
	p.c.touch(p)
}

// flush sends what has become possible: control frames first, then credits,
// then coalesced data.
func (p *peer) flush() {
	if p.err != nil {
		return
	}
	p.serveClaims()
	p.pushCheck()
	for p.prepaid.len() > 0 && p.flushFirst(&p.prepaid, true) {
	}
	for p.ctl.len() > 0 && p.mayCtl() && p.flushFirst(&p.ctl, false) {
	}
	for p.dirty.len() > 0 || p.creditDue() {
		if !p.mayCtl() || !p.sendCredits() {
			break
		}
	}
	for p.pending.len() > 0 && (*p.pending.first()).sendPending() {
		p.pending.pop().queued = false
	}
	p.c.push(p)
}

// flushFirst sends the first of the control frames in q, and reports whether it could.
func (p *peer) flushFirst(q *fifo[ctlFrame], paid bool) bool {
	f := q.first()
	if !p.frame(f, p.streams[f.stream], f.payload[:f.n], paid) {
		return false
	}
	q.pop()
	return true
}

// markDirty sees to it that the peer is told of the stream's credits soon.
func (s *stream) markDirty() {
	if !s.dirty && !s.gone() && s.p.err == nil && s.recv != recvEOF {
		s.dirty = true
		s.p.dirty.push(s)
		s.p.c.touch(s.p)
	}
}

// sendCredits tells the peer of its slots and of the dirty streams' credits. It reports false
// if there is no send slot for that.
func (p *peer) sendCredits() bool {
	if !p.mayFrame() {
		p.lackSends()
		return false
	}
	slot, _ := p.c.tx.Get()
	n, room := 0, p.c.tx.Bytes(slot)[framing.HeaderSize:][:p.eager]
	for p.dirty.len() > 0 && n+framing.CreditSize <= len(room) {
		s := p.dirty.pop()
		s.dirty = false
		if s.gone() || s.advertisedWindow == s.promised && s.advertisedRing == s.largeRel {
			continue // another frame has told the peer meanwhile
		}
		e := framing.Credit{Stream: s.id}
		e.Window, e.Ring = s.tell()
		e.Encode(room[n:])
		n += framing.CreditSize
	}
	if n == 0 && !p.creditDue() {
		p.c.tx.Put(slot)
		return true
	}
	p.c.stats.CreditFrames++
	p.queue(&ctlFrame{t: framing.TypeCredit}, nil, slot, n, false)
	return true
}
