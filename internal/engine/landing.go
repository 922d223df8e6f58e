package engine

import (
	"container/list"
	"fmt"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/pool"
)

// inLease is a landing ring that we have granted the peer for one stream.
type inLease struct {
	*pool.Lease
	base    uint64 // ring position at which the lease began
	chunk   uint32
	seq     uint16 // of the write that is next in line
	last    uint32 // length of the last write taken; 0 before the first
	end     uint64 // stream position behind it
	writes  [framing.MaxWrites]landing
	use     *list.Element // in rings.used, unless it returns
	lent    []*Buffer     // pieces of the ring that the user holds, in order
	read    uint64        // ring position of the next byte to be read
	since   int64         // when it was granted
	touched int64         // when it was used last, for taking idle leases back

	unread     writeLog
	advertised uint16 // writes read, as of the last frame sent
}

// writeLog counts the writes of a lease that are not read yet: both sides
// bound their number.
type writeLog struct {
	ends [framing.MaxWrites]uint64 // ring positions behind them
	read uint16                    // writes that have been read
	next uint16
}

func (w *writeLog) len() int { return int(w.next - w.read) }

func (w *writeLog) add(end uint64) {
	w.ends[w.next%framing.MaxWrites] = end
	w.next++
}

// extend moves the end of the write that was added last.
func (w *writeLog) extend(end uint64) { w.ends[(w.next-1)%framing.MaxWrites] = end }

// retire forgets the writes before ring position pos.
func (w *writeLog) retire(pos uint64) {
	for w.read != w.next && w.ends[w.read%framing.MaxWrites] <= pos {
		w.read++
	}
}

// landing is what is known of one write: two notices complete it, in either
// order.
type landing struct {
	announced bool // a Large frame said where it belongs
	landed    bool // its bytes are in the ring
	continues bool
	pos       uint64
	ring      uint64
	n         uint32
}

// landed takes in the completion data of an RDMA write. All that is believed is
// that a write which we had granted is complete, and that only from the one whom
// we had granted it, if it has room for a proof there or another way to say so.
func (c *core) landed(data uint64) {
	imm := framing.Immediate(data)
	if isProbe(imm.Lease()) {
		c.probeLanded(data)
		return
	}
	var p *peer // whose lease it is, or was: the slot that it took is free again
	if int(imm.Lease()) < len(c.lessees) {
		p = c.lessees[imm.Lease()]
	}
	if p == nil || p.err != nil || p.silent || p.proves && !framing.Proven(data, p.proofIn) {
		c.stats.WritesStray++
		return
	}
	if !p.useSlot(imm.Odd()) {
		return
	}
	c.grant(p)
	l := c.leases.Lookup(imm.Lease())
	if l == nil {
		c.stats.WritesStray++
		return
	}
	s := l.Owner.(*stream)
	in := s.inLease
	if s.gone() || in == nil || in.Lease != l {
		c.stats.WritesStray++
		return
	}
	w := in.slot(imm.Seq())
	if w == nil || w.landed {
		c.stats.WritesStray++
		return
	}
	w.landed, w.continues = true, imm.Continues()
	if err := s.advance(); err != nil {
		c.stats.Violations++
		c.fail(p, err)
	}
}

// slot is where the write with the given number is noted, nil if it cannot be
// in flight.
func (l *inLease) slot(seq uint16) *landing {
	if ahead := framing.SeqAfter(seq, l.seq); ahead < 0 || ahead >= framing.MaxWrites {
		return nil
	}
	return &l.writes[seq%framing.MaxWrites]
}

// announced takes a Large frame in.
func (s *stream) announced(h *framing.Header, payload []byte) error {
	var a framing.Large
	if err := a.Decode(payload); err != nil {
		return err
	}
	l := s.inLease
	if s.discarding() || l == nil || l.Index != a.Lease {
		s.p.c.stats.FramesStray++
		return nil
	}
	w := l.slot(a.Seq)
	if w == nil || w.announced {
		return fmt.Errorf("%w: write %d announced out of turn", errProtocol, a.Seq)
	}
	w.announced, w.pos, w.ring, w.n = true, h.Pos, a.Ring, a.Length
	if h.Flags&framing.FlagLanded != 0 {
		w.landed = true
	}
	return s.advance()
}

// takeLanded takes in the write that is next in its lease, if it has landed
// and is next in the stream.
func (s *stream) takeLanded() (bool, error) {
	l := s.inLease
	if l == nil || s.err != nil {
		return false, nil
	}
	w := &l.writes[l.seq%framing.MaxWrites]
	switch {
	case !w.landed || !w.announced && !w.continues:
		return false, nil
	case !w.announced:
		w.pos, w.ring, w.n = l.end, s.largeIn, l.last
		if l.last == 0 {
			return false, fmt.Errorf("%w: write continues nothing", errProtocol)
		}
	}
	if w.pos > s.rcvNxt {
		return false, nil
	}
	n, size := uint64(w.n), uint64(len(l.Ring.Bytes))
	switch off := framing.RingOffset(w.ring-l.base, size); {
	case w.pos != s.rcvNxt, w.ring != s.largeIn, n == 0, n > uint64(l.chunk), off+n > size,
		s.largeIn+n-s.largeRel > size, l.unread.len() == framing.MaxWrites, s.recv.ends() && w.pos+n > s.finPos:
		return false, fmt.Errorf("%w: write of %d bytes at %d does not fit the ring", errProtocol, n, w.ring)
	}
	l.last = w.n
	*w = landing{}
	l.seq++
	s.rcvNxt += n
	s.largeIn += n
	l.unread.add(s.largeIn)
	l.end = s.rcvNxt
	s.info.LargeIn += n
	s.p.c.stats.RDMAReceived += n
	s.p.landed++
	s.p.c.stats.RDMAWritesReceived++
	s.useRing()
	if s.reader == readerShut {
		l.read += n
		s.releaseRing()
	} else {
		s.segs.push(true, int(n))
		s.rd.signal()
	}
	return true, nil
}

// slice is the next bytes to be read from the ring, at most n, in one piece.
func (l *inLease) slice(n int) []byte {
	pos, size := l.read-l.base, uint64(len(l.Ring.Bytes))
	off := framing.RingOffset(pos, size)
	return l.Ring.Bytes[off : off+framing.RingSpan(pos, size, uint64(n))]
}

// consumeLarge notes that the next n bytes of the ring were read.
func (s *stream) consumeLarge(n int) {
	s.segs.pop(n)
	s.inLease.read += uint64(n)
	s.releaseRing()
}

// releaseRing gives the peer back what has been read, up to the first piece
// that the user still holds: releasing out of order would let the peer
// overwrite it.
func (s *stream) releaseRing() {
	l := s.inLease
	for len(l.lent) > 0 && l.lent[0].released {
		l.lent = l.lent[1:]
	}
	free := l.read
	if len(l.lent) > 0 {
		free = l.lent[0].ring
	}
	if free == s.largeRel {
		return
	}
	s.largeRel = free
	l.Release(free)
	l.unread.retire(free)
	if s.ringDue() {
		s.markDirty()
	}
	s.dropLease()
}

// unhold keeps the peer from waiting for room in the ring, or with a write that it
// holds back (see peer.holding), while the user waits for the rest of a message and
// holds what came before: nothing will be released before the rest is there.
func (s *stream) unhold() {
	l := s.inLease
	switch {
	case l == nil || len(l.lent) == 0:
	case !l.goesOn(s.largeIn - s.largeRel):
		s.revoke() // frames need no room in the ring
	case s.largeRel != s.advertisedRing:
		s.markDirty()
	}
}

// goesOn reports that the peer goes on writing, as long as so many bytes of the ring are not
// released, once it is told of the rest, however much it wants to write: see ringRoom.
func (l *inLease) goesOn(unreleased uint64) bool {
	size := uint64(len(l.Ring.Bytes))
	free := size - unreleased
	return l.unread.len() < framing.MaxWrites && free > size/2 && (free >= uint64(l.chunk) || free > size-size/4)
}

// dropLease frees the ring once the peer has returned it and everything in it
// has been read.
func (s *stream) dropLease() {
	l := s.inLease
	if l == nil || s.largeIn != s.largeRel || s.reader.copies() || len(l.lent) > 0 || !s.p.c.leases.Drop(l.Lease) {
		return
	}
	s.leaseOver()
}

// takeWay takes in how the peer tells that its writes have landed.
func (p *peer) takeWay(f framing.Flags) {
	p.silent = f&framing.FlagLanded != 0
	p.proves = f&framing.FlagProven != 0 && p.c.proven
}

// takeWant takes in a frame that asks for a ring.
func (s *stream) takeWant(h *framing.Header) {
	s.p.takeWay(h.Flags)
	s.wanted()
}

// returned takes in that the peer has given its lease back.
func (s *stream) returned(final uint64) error {
	l := s.inLease
	if l == nil || s.recv == recvCut { // a Reset, which overtook it, has ended the lease
		return nil
	}
	if err := l.Return(final); err != nil {
		return fmt.Errorf("%w: %w", errProtocol, err)
	}
	s.leaseEnds()
	s.p.c.rings.asked = max(0, s.p.c.rings.asked-1)
	s.dropLease()
	return nil
}
