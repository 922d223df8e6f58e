package engine

import (
	"container/list"
	"fmt"

	"github.com/seed202c38ff/fabricnet/framing"
)

// inLease is a landing ring that we have granted the peer for one stream.
type inLease struct {
	lease
	chunk   uint32
	seq     uint16 // of the next write in line
	last    uint32 // length of the last write taken in; 0 before the first
	end     uint64 // stream position where that write ends
	writes  [framing.MaxWrites]landing
	use     *list.Element // in rings.used, until the lease was revoked, replaced or has ended
	full    bool          // the writer finds the ring too small
	since   int64         // when it was granted, in Unix nanoseconds
	touched int64         // when it was used last, likewise: idle leases are taken back

	unread     writeLog
	advertised uint16 // unread.read, as of the last frame sent
}

// writeLog keeps track of the writes of a lease that are not read yet. Both sides limit
// how many these are.
type writeLog struct {
	ends [framing.MaxWrites]uint64 // ring positions where they end
	read uint16                    // writes that have been read
	next uint16
}

func (w *writeLog) len() int { return int(w.next - w.read) }

func (w *writeLog) add(end uint64) {
	w.ends[w.next%framing.MaxWrites] = end
	w.next++
}

// retire forgets the writes that end at ring position pos or before.
func (w *writeLog) retire(pos uint64) {
	for w.read != w.next && w.ends[w.read%framing.MaxWrites] <= pos {
		w.read++
	}
}

// landing is what is known of one write. It takes two notices to complete it, which come in
// either order.
type landing struct {
	announced bool // a Large frame has said where it belongs
	landed    bool // its bytes are in the ring
	continues bool
	pos       uint64
	ring      uint64
	n         uint32
}

// slot returns where the write numbered seq is noted, nil if no such write can be
// in flight.
func (l *inLease) slot(seq uint16) *landing {
	if ahead := framing.SeqAfter(seq, l.seq); ahead < 0 || ahead >= framing.MaxWrites {
		return nil
	}
	return &l.writes[seq%framing.MaxWrites]
}

// announced takes in a Large frame.
func (s *stream) announced(h *framing.Header, payload []byte) error {
	var a framing.Large
	if err := a.Decode(payload); err != nil {
		return err
	}
	l := s.leaseNamed(a.Lease)
	if s.discarding() || l == nil {
		s.p.c.stats.FramesStray++
		return nil
	}
	w := l.slot(a.Seq)
	if w == nil || w.announced {
		return fmt.Errorf("%w: write %d announced out of turn", errProtocol, a.Seq)
	}
	w.announced, w.pos, w.ring, w.n = true, h.Pos, a.Ring, a.Length
	w.landed = w.landed || h.Flags&framing.FlagLanded != 0
	return s.advance()
}

// takeLanded takes in the next write of the lease, if it has landed and is next
// in the stream.
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
		s.largeIn+n-max(s.largeRel, l.base) > size, l.unread.len() == framing.MaxWrites, s.recv.ends() && w.pos+n > s.finPos:
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
	s.stats.RDMABytesReceived += n
	s.p.landed++
	s.stats.RDMAWritesReceived++
	l.touched = s.p.c.now().UnixNano()
	s.p.c.rings.used.MoveToBack(l.use)
	if s.shut && !s.copying {
		s.largeRead += n
		s.releaseRing()
	} else {
		s.segs.push(true, int(n))
		s.rd.signal()
	}
	s.replaced()
	return true, nil
}

// slice returns the next bytes to be read from the ring, in one piece and n at most.
func (s *stream) slice(n int) []byte {
	l := s.reading()
	if l == s.oldLease {
		n = int(min(uint64(n), s.inLease.base-s.largeRead))
	}
	pos, size := s.largeRead-l.base, uint64(len(l.Ring.Bytes))
	off := framing.RingOffset(pos, size)
	return l.Ring.Bytes[off : off+framing.RingSpan(pos, size, uint64(n))]
}

// consumeLarge notes that the next n bytes of the ring were read.
func (s *stream) consumeLarge(n int) {
	s.segs.pop(n)
	s.largeRead += uint64(n)
	s.releaseRing()
}

// releaseRing gives back to the peer what has been read, up to the first piece that
// the user still holds. Releasing more than that would let the peer overwrite the piece.
func (s *stream) releaseRing() {
	l := s.inLease
	for len(s.lent) > 0 && s.lent[0].released {
		s.lent = s.lent[1:]
	}
	free := s.largeRead
	if len(s.lent) > 0 {
		free = s.lent[0].ring
	}
	if free == s.largeRel {
		return
	}
	s.largeRel = free
	s.dropOld()
	l.unread.retire(free)
	if s.ringDue() {
		s.markDirty()
	}
	s.dropLease()
}

// unhold keeps the user and the peer from waiting for each other. A user may hold the first
// part of a message while it waits for the rest, and will release nothing before that is there.
// Meanwhile the peer must not wait for room in the ring.
func (s *stream) unhold() {
	l := s.inLease
	switch {
	case l == nil || len(s.lent) == 0:
	case !l.goesOn(s.largeIn - max(s.largeRel, l.base)):
		s.revoke() // frames need no room in the ring
	case s.largeRel != s.advertisedRing:
		s.markDirty()
	}
}

// goesOn reports whether the peer goes on writing, however much it has to write, once it has
// been told that all but unreleased bytes of the ring are free: see ringRoom.
func (l *inLease) goesOn(unreleased uint64) bool {
	size := uint64(len(l.Ring.Bytes))
	free := size - unreleased
	return l.unread.len() < framing.MaxWrites && free > size/2 && (free >= uint64(l.chunk) || free > size-size/4)
}

// dropLease frees the ring once the peer has returned it and everything in it
// has been read and released.
func (s *stream) dropLease() {
	l := s.inLease
	if l == nil || s.nextLease != nil || s.largeIn != s.largeRel || s.copying || len(s.lent) > 0 || !l.drained() {
		return
	}
	s.p.c.leases.drop(l)
	s.leaseOver()
	if !s.gone() {
		s.promise() // the window may grow again
	}
}

// returned takes in that the peer has given its lease back.
func (s *stream) returned(final uint64) error {
	l := s.inLease
	if l == nil || s.recv == recvCut { // a Reset that overtook this frame has ended the lease
		return nil
	}
	if err := l.endAt(final); err != nil {
		return err
	}
	if s.nextLease != nil {
		s.replaced()
		return s.advance()
	}
	s.leaseEnds()
	s.p.c.rings.asked = max(0, s.p.c.rings.asked-1)
	s.dropLease()
	return nil
}
