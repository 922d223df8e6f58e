package engine

import (
	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// tail is the RDMA write that was begun last and is not posted yet, so that a Write
// may add to it. It already has its place in the stream and in the peer's ring, and
// its receive slots.
type tail struct {
	stream   *stream // nil if there is none
	src      source
	pos      uint64 // stream position of the first byte
	ring     uint64 // ring position of the first byte
	announce uint32 // send slot for the frame that announces it; not with byDeliver
}

// source is where the bytes of an RDMA write lie: in adjacent staging chunks, or in
// a piece of a user's Buffer.
type source struct {
	mem   []byte
	desc  uintptr
	slot  uint32 // the first chunk
	slots int    // 0 for a Buffer
	buf   *Buffer
}

// extends reports whether the next k bytes fit behind the peer's tail.
func (s *stream) extends(k int) bool {
	t, l := &s.p.tail, s.outLease
	return t.stream == s && t.src.slots > 0 && uint64(len(t.src.mem)+k) <= s.maxWrite() &&
		framing.RingOffset(s.largeOut-l.base, l.Size) != 0
}

// fill copies what it can of b into the rest of the tail's last chunk.
func (s *stream) fill(b []byte) int {
	t := &s.p.tail
	if t.stream != s {
		return 0
	}
	n := len(t.src.mem)
	left := t.src.slots*stepSize - n
	if left <= 0 {
		return 0
	}
	k := s.largeRoom(len(b), left)
	if k == 0 || !s.extends(k) {
		return 0
	}
	t.src.mem = s.p.c.stage.Span(t.src.slot, t.src.slots)[:n+k]
	copy(t.src.mem[n:], b)
	s.extendWrite(k)
	s.p.pushTail()
	return k
}

// prepareLarge takes a staging chunk for the next of n bytes that are left to write.
// If it gets none, src.mem is nil.
func (s *stream) prepareLarge(n int) (src source) {
	k := s.largeRoom(n, stepSize)
	if k == 0 {
		return src
	}
	c := s.p.c
	slot, ok := s.p.takeStage()
	if !ok {
		return src
	}
	return source{mem: c.stage.Bytes(slot)[:k], desc: c.stage.Desc(slot), slot: slot, slots: 1}
}

// takeStage takes a staging chunk for an RDMA write to the peer.
func (p *peer) takeStage() (slot uint32, ok bool) {
	c := p.c
	if !p.mayStage() {
		c.wantStage()
		c.stats.Stalls.Stage++
		return 0, false
	}
	p.staged++
	return c.takeStage()
}

// takeStage takes a staging chunk.
func (c *core) takeStage() (slot uint32, ok bool) {
	c.stageUsed = true
	get := c.stage.Get
	if c.attr.PerPeer {
		get = c.stage.GetNext // the peer's processor reads it
	}
	return get()
}

// commitLarge makes a write of the bytes that the caller has put into src, which prepareLarge
// took; left is how many the caller had left. It reports false if the ring has no room for them
// any more, as when the lease has changed since: src remains the caller's then.
func (s *stream) commitLarge(src source, left int) bool {
	k, t := len(src.mem), &s.p.tail
	n := len(t.src.mem)
	if s.largeRoom(left, stepSize) < k {
		return false
	}
	if s.extends(k) && n == t.src.slots*stepSize && s.p.c.stage.Adjoin(t.src.slot+uint32(t.src.slots)-1, src.slot) {
		t.src.slots++
		t.src.mem = s.p.c.stage.Span(t.src.slot, t.src.slots)[:n+k]
		s.extendWrite(k)
	} else {
		s.p.seal()
		if s.largeRoom(left, stepSize) < k { // they may have fitted only as part of the tail
			s.p.c.push(s.p)
			return false
		}
		s.begin(src)
	}
	s.p.pushTail()
	return true
}

// begin makes src the peer's tail. The caller has just seen that largeRoom
// allows it.
func (s *stream) begin(src source) {
	p := s.p
	p.tail = tail{stream: s, src: src, pos: s.sndNxt, ring: s.largeOut}
	if p.c.rule != byDeliver {
		p.tail.announce, _ = p.c.tx.Get()
	}
	s.beginWrite(len(src.mem))
	s.countLarge(len(src.mem))
	if src.buf != nil {
		p.c.stats.Copies.Unstaged += uint64(len(src.mem))
	}
}

// beginWrite gives a write of n bytes its place in the stream and in the ring, and takes the
// receive slots that it needs.
func (s *stream) beginWrite(n int) {
	s.p.spend(s.writeSlots())
	s.place(n)
	s.outLease.unread.add(s.largeOut)
	s.writing++
}

// extendWrite adds n bytes to the write that was begun last.
func (s *stream) extendWrite(n int) {
	s.place(n)
	s.countLarge(n)
	s.outLease.unread.extend(s.largeOut)
}

// place gives the next n bytes of large data their place in the stream and in the ring.
func (s *stream) place(n int) {
	s.sndNxt += uint64(n)
	s.largeOut += uint64(n)
}

// countLarge counts n bytes of large data as sent.
func (s *stream) countLarge(n int) {
	s.info.LargeOut += uint64(n)
	s.p.c.stats.RDMABytesSent += uint64(n)
}

// holding reports whether the tail had better wait for more bytes: the reader is so far
// behind that it loses nothing by the wait, and longer writes cost it less. When the reader
// has caught up, its credits wake this side even if nobody polls here, since the reader's side
// rings the doorbell (SPEC.md section 8).
func (p *peer) holding() bool {
	t := &p.tail
	s := t.stream
	if p.doorbell.Own == nil || t.src.slots == 0 || !s.mayData() || s.grant != grantHeld {
		return false
	}
	// Others must be able to go on meanwhile.
	if !p.mayData(2) || !p.mayStage() {
		return false
	}
	return uint64(len(t.src.mem)) < s.maxWrite() && t.ring-uint64(s.largeMax) >= s.outLease.Size/2
}

// pushTail posts the tail unless holding says that it had better wait.
func (p *peer) pushTail() {
	if p.tail.stream != nil {
		if p.c.held = p.holding(); !p.c.held {
			p.seal()
		}
	}
	p.c.push(p)
}

// seal ends the tail: nothing more is added to it, and it is queued, ahead of
// whatever is queued next.
func (p *peer) seal() {
	t := p.tail
	s := t.stream
	if s == nil {
		return
	}
	p.tail, p.c.held = tail{}, false
	l, n := s.outLease, len(t.src.mem)
	a := framing.Large{Lease: l.Index, Seq: l.seq, Length: uint32(n), Ring: t.ring}
	op := fabric.Op{
		Kind: fabric.Write, To: p.addr, Buf: t.src.mem, Desc: t.src.desc,
		Remote: l.Addr + framing.RingOffset(t.ring-l.base, l.Size), Key: l.Key,
		Deliver: p.c.deliver,
	}
	tx := txOp{peer: p, stream: s, slot: t.src.slot, slots: uint8(t.src.slots), buf: t.src.buf}
	if t.src.slots > 0 {
		tx.from = p.c.stage
	}
	continues := false
	announce := ctlFrame{t: framing.TypeLarge, stream: s.id, pos: t.pos}
	switch p.c.rule {
	case byCQData:
		continues = n == l.last && l.end == t.pos
		op.Kind = fabric.WriteData
		op.Data = p.completionData(l.Index, l.seq, continues)
	case bySAW:
		announce.flags = framing.FlagLanded
	case byDeliver:
		tx.large, tx.pos = a, t.pos
	}
	l.seq++
	l.last, l.end = n, t.pos+uint64(n)
	p.c.stats.RDMAWrites++
	p.out = append(p.out, outOp{op, tx})
	switch {
	case p.c.rule == byDeliver: // announced once it is complete
	case continues:
		p.unspend(1)
		p.c.tx.Put(t.announce)
	default:
		s.announce(&announce, t.announce, &a)
	}
}

// announce queues a Large frame in a send slot. Its receive slot has been taken before.
func (s *stream) announce(f *ctlFrame, slot uint32, a *framing.Large) {
	s.leaving++
	f.leaves = s
	mem := s.p.c.tx.Bytes(slot)[framing.HeaderSize:][:framing.LargeSize]
	a.Encode(mem)
	s.p.queue(f, s, slot, len(mem), true)
}

// completionData returns the completion data of a write to the peer, with the proof if there
// is room for it. It counts the write as a message of the current epoch.
func (p *peer) completionData(lease, seq uint16, continues bool) uint64 {
	imm := framing.MakeImmediate(lease, seq, continues, p.beats.count())
	if p.c.proven {
		return imm.Proven(p.proofOut)
	}
	return uint64(imm)
}

// dropTail forgets the tail of a peer that has failed.
func (p *peer) dropTail() {
	t := p.tail
	if t.stream == nil {
		return
	}
	p.tail, p.c.held = tail{}, false
	if p.c.rule != byDeliver {
		p.c.tx.Put(t.announce)
	}
	tx := txOp{peer: p, slot: t.src.slot, slots: uint8(t.src.slots), buf: t.src.buf}
	if t.src.slots > 0 {
		tx.from = p.c.stage
	}
	tx.release()
}

// writeDone takes in the completion of an RDMA write.
func (s *stream) writeDone(t *txOp) {
	if s.p.c.rule == byDeliver && s.p.err == nil {
		f := ctlFrame{
			t: framing.TypeLarge, flags: framing.FlagLanded, stream: s.id,
			pos: t.pos, n: framing.LargeSize, leaves: s,
		}
		s.leaving++
		t.large.Encode(f.payload[:])
		s.p.prepaid.push(f)
		s.p.c.touch(s.p)
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
		if s.send != sendOpen && s.p.c.attr.PerPeer {
			s.wr.signal() // see hasLeft
		}
	}
}
