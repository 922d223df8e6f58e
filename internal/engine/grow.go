package engine

import (
	"github.com/seed202c38ff/fabricnet/framing"
)

// How a ring grows. It begins small, so that what is sent and read at once stays in the caches: round trips
// of 16 KiB on one core take 0.77 of the time that they take in rings of 2 MiB. A writer that finds it full, or
// has a whole step to write, asks for more, once, and gets a second, larger one as long as memory is plentiful.
// (Steps that follow one another closely come back to lines that are still in the cache of the reader's core,
// which is slow: between two cores, round trips of 64 KiB in a ring of 256 KiB take 1.12 of the time. Both
// are of an Intel Xeon, libfabric 1.17, medians of 11 runs.)
//
//	the writer                                    the reader
//	finds the ring full, or too small: Want,
//	with its index
//	                                              grants a second ring, in nextLease: Lease
//	maps it, if it has to, and goes on in the
//	first meanwhile; if it cannot map it, it
//	says so, and stays there (refuse)
//	waits until no write is in flight, returns
//	the first, goes on in the second (hold)
//	                                              has the Return, and all before it (replaced): the
//	                                              second ring is inLease, and the first one oldLease
//	                                              until it has been read
//
// It needs no reader for that, so a writer goes on even if nobody reads. A stream has two rings at most:
// the first has to be read before the second is replaced. From the second Lease until the Return neither
// ring is asked back, since a Revoke does not say which one it means.

// inLeases are the landing rings that we have granted the peer for one stream.
type inLeases struct {
	oldLease  *inLease  // has all that will come; something of it is unread, or held by the user
	inLease   *inLease  // takes what comes; nil if the stream has no ring
	nextLease *inLease  // takes what comes next. There is no oldLease then
	lent      []*Buffer // pieces of the rings that the user holds, in order
}

// leaseNamed returns the lease that the peer names and may still write to, nil if there is none.
func (l *inLeases) leaseNamed(index uint16) *inLease {
	for _, in := range []*inLease{l.inLease, l.nextLease} {
		if in != nil && in.Index == index {
			return in
		}
	}
	return nil
}

// reading returns the lease in which the next large byte lies that was not read.
func (s *stream) reading() *inLease {
	if s.oldLease != nil && s.largeRead < s.inLease.base {
		return s.oldLease
	}
	return s.inLease
}

// begin puts a lease to use: what comes next is written to its ring.
func (s *stream) begin(in *inLease) {
	now := s.p.c.now().UnixNano()
	in.base, in.since, in.touched = s.largeIn, now, now
	in.use = s.p.c.rings.used.PushBack(s)
	s.inLease = in
}

// askMore asks for a larger ring than this one.
func (s *stream) askMore() {
	if l := s.outLease; s.grant == grantHeld && s.offer == nil && !l.full {
		l.full = true
		s.p.control(ctlFrame{t: framing.TypeWant, stream: s.id, pos: 1 + uint64(l.Index)})
	}
}

// refuse gives the second ring back, since it could not be mapped here. The stream goes on in the first, and
// asks for no other.
func (s *stream) refuse() {
	s.offer.mapped.leases--
	s.offer = nil
	s.p.control(ctlFrame{t: framing.TypeReturn, flags: framing.FlagWant, stream: s.id})
}

// refused takes in that the peer goes on in the first ring, and gives the second one back.
func (s *stream) refused() {
	if s.nextLease != nil && s.inLease.state == leaseGranted {
		s.dropNext()
		s.inLease.full = false
		s.inLease.use = s.p.c.rings.used.PushBack(s)
		s.p.trim()
	}
}

// filled takes in that the peer finds the ring of the lease with that index full, or too small. For the second
// ring that may come before the Return of the first.
func (s *stream) filled(index uint64) {
	if l := s.leaseNamed(uint16(index)); l != nil && uint64(l.Index) == index {
		l.full = true
		s.growRing()
	}
}

// growRing grants the stream a second ring, or has it wait for one, if it may have one.
func (s *stream) growRing() {
	if s.claim != claimOpen && s.mayGrow() && (s.p.claims.Len() > 0 || !s.grantRing()) {
		s.makeClaim()
	}
}

// mayGrow reports whether the stream may have a second ring.
func (s *stream) mayGrow() bool {
	l, size := s.inLease, s.nextSize()
	return !s.discarding() && s.recv == recvOpen && l.state == leaseGranted && s.oldLease == nil && s.nextLease == nil &&
		size > len(l.Ring.Bytes) && s.p.supply.state != refused && s.p.c.leaves(2, size)
}

// growNot ends the claims for larger rings: there is no memory for them now. See reclaim.
func (p *peer) growNot() {
	for e := p.claims.Front(); e != nil; {
		s := e.Value.(*stream)
		if e = e.Next(); s.inLease != nil {
			s.dropClaim()
		}
	}
}

// replaced goes on with the second ring, if the peer has returned the first and all of it has arrived.
func (s *stream) replaced() {
	if s.nextLease == nil || s.inLease.state != leaseReturned || s.inLease.final != s.largeIn {
		return
	}
	s.oldLease = s.inLease
	s.begin(s.nextLease)
	s.nextLease = nil
	if s.dropOld(); s.inLease.full { // and said so before the Return came
		s.growRing()
	}
}

// dropOld frees the first ring once it has been read and released.
func (s *stream) dropOld() {
	if s.oldLease == nil || !s.oldLease.drained() {
		return
	}
	s.p.c.leases.drop(s.oldLease)
	s.oldLease = nil
	s.p.c.discard(s.p.landing.Trim(0)...)
	if s.p.claims.Len() > 0 {
		s.p.c.touch(s.p)
	}
}

// dropNext frees a second ring to which nothing was written, and will not be.
func (s *stream) dropNext() {
	if s.nextLease != nil {
		s.p.c.leases.drop(s.nextLease)
		s.nextLease = nil
	}
}
