package engine

import (
	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// source is where the bytes of an RDMA write lie: in a staging chunk, or in a piece of a user's
// Buffer.
type source struct {
	mem  []byte
	desc uintptr
	slot uint32  // the chunk
	buf  *Buffer // nil: it is a chunk
}

// prepareLarge takes a staging chunk for the next of n bytes that are left to write.
// If it gets none, src.mem is nil.
func (s *stream) prepareLarge(n int) (src source) {
	k := s.largeRoom(n, stepSize)
	if k == 0 {
		return src
	}
	c := s.p.c
	slot, ok := s.p.takeStage(s.checks)
	if !ok {
		return src
	}
	return source{mem: c.stage.Bytes(slot)[:k], desc: c.stage.Desc(slot), slot: slot}
}

// takeStage takes a staging chunk for an RDMA write to the peer, for a path check even if that leaves too little
// to others: a check holds few, and only for a moment.
func (p *peer) takeStage(check bool) (slot uint32, ok bool) {
	c := p.c
	if !p.mayStage() && (!check || c.stage.Free() == 0) {
		if !check || p.staged == 0 {
			c.wantStage()
		}
		c.stats.Stalls.Stage++
		return 0, false
	}
	p.holdStage(1)
	c.stageUsed = true
	return c.stage.Get()
}

// commitLarge makes a write of the bytes that the caller has put into src, which prepareLarge
// took; left is how many the caller had left. It reports false if the ring has no room for them
// any more, as when the lease has changed since: src remains the caller's then.
func (s *stream) commitLarge(src source, left int) bool {
	if s.largeRoom(left, stepSize) < len(src.mem) {
		return false
	}
	s.post(src)
	return true
}

// post writes src to the ring. The caller has just seen that largeRoom allows it.
func (s *stream) post(src source) {
	p, l, n := s.p, s.outLease, len(src.mem)
	op := fabric.Op{
		Kind: fabric.Write, To: p.addr, Buf: src.mem, Desc: src.desc,
		Remote: l.Addr + framing.RingOffset(s.largeOut-l.base, l.Size), Key: l.Key, Deliver: p.c.deliver,
	}
	tx := txOp{peer: p, stream: s, slot: src.slot, buf: src.buf, pos: s.sndNxt}
	continues := n == l.last && l.end == s.sndNxt
	if src.buf == nil {
		tx.from = p.c.stage
	} else {
		s.stats.Copies.Unstaged += uint64(n)
	}
	tx.large = s.beginWrite(n)
	s.countLarge(n)
	l.last, l.end = n, s.sndNxt
	p.postWrite(op, tx, continues)
	p.c.push(p)
}

// beginWrite gives a write of n bytes its place in the stream and in the ring, and returns what
// announces it.
func (s *stream) beginWrite(n int) framing.Large {
	if n >= stepSize {
		s.askMore()
	}
	l := s.outLease
	large := framing.Large{Lease: l.Index, Seq: l.seq, Length: uint32(n), Ring: s.largeOut}
	s.place(n)
	l.seq++
	l.unread.add(s.largeOut)
	s.writing++
	return large
}

// place gives the next n bytes of large data their place in the stream and in the ring.
func (s *stream) place(n int) {
	s.sndNxt += uint64(n)
	s.largeOut += uint64(n)
}

// countLarge counts a write of n bytes of large data as sent.
func (s *stream) countLarge(n int) {
	s.info.LargeOut += uint64(n)
	s.stats.RDMABytesSent += uint64(n)
	s.stats.RDMAWrites++
}

// writeDone takes in the completion of an RDMA write.
func (s *stream) writeDone(t *txOp) {
	if p := s.p; p.c.rule == byDeliver && p.err == nil {
		p.prepaid.push(t.largeFrame(framing.FlagLanded))
		p.c.touch(p)
	}
	s.written()
}

// written notes that a write is no longer in flight. If none is, it does what had to wait
// for that.
func (s *stream) written() {
	if s.writing > 0 {
		s.writing--
	}
	if s.writing == 0 {
		s.endMapped()
		s.giveBack()
		s.sendReset()
		s.ackFin()
		s.tryRemove()
		if s.send != sendOpen && s.p.c.attr.SameHost {
			s.wr.signal() // see hasLeft
		}
	}
}
