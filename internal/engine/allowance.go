package engine

import (
	"math"

	"github.com/seed202c38ff/fabricnet/framing"
)

// What a sender may use: four budgets that the peer or the provider grants (framing/SPEC.md,
// section 4), and what its peer has of the endpoint (quota.go). A sender asks here before it sends, and learns
// here what it has to wait for.
//
//	budget            may                  is taken by        comes back by
//	window            smallRoom            smallOut           Window of a frame
//	ring              ringRoom             place              Ring of a frame
//	peer's slots      mayData, mayCtl      used               Slots of a frame
//	operations        mayFly               takeOp             a completion
//	send slots        mayWrite, mayFrame   c.tx.Get           the same
//	staging memory    mayStage             takeStage          the same

// mayLeave reports whether a frame of data may be sent at once. Where large data is copied, control
// frames go first: data that overtook the announcement of a copy would take the slot that this needs.
func (p *peer) mayLeave() bool { return p.mayData(1) && (p.c.rule != byCopy || p.ctl.len() == 0) }

// mayBegin reports whether a frame of small data gets a send slot. A frame that cannot leave at
// once keeps its send slot until the peer has a receive slot for it, which may be never.
func (p *peer) mayBegin() bool {
	if p.c.attr.SameHost && !p.maySpill() && (p.pending.len() > 0 || !p.mayLeave()) {
		return false // what Write has returned for must outlive the process
	}
	return p.mayWrite()
}

// smallRoom is how many bytes of small data the peer has room for.
func (s *stream) smallRoom() uint64 { return max(s.smallMax, s.smallOut) - s.smallOut }

func (s *stream) windowFull() bool { return s.smallRoom() == 0 }

// isLarge reports whether n bytes are for the ring. Once the window is full, even what fits a
// frame is, so that nobody waits for a reader while the ring has room.
func (s *stream) isLarge(n int) bool { return n > s.p.eager || s.windowFull() }

// forRing reports whether a writer with n bytes left waits for room in the ring, if there is none.
func (s *stream) forRing(n int) bool { return s.isLarge(n) && !s.conn.small && s.ringServes() }

// largeRoom is how many of want bytes an RDMA write can carry now, at most
// limit.
func (s *stream) largeRoom(want, limit int) int {
	p := s.p
	if !s.holds() || s.unmapped() || s.hasPending() || !s.isLarge(want) {
		return 0
	}
	k := s.ringRoom(want, limit)
	switch {
	case k == 0:
		p.c.stats.Stalls.Ring++
	case !p.mayData(p.c.rule.slots()):
		p.c.stats.Stalls.PeerSlots++
	case !p.mayWrite():
		p.lackSends()
	default:
		return k
	}
	return 0
}

// ringRoom is largeRoom as far as the stream's own ring is concerned.
func (s *stream) ringRoom(want, limit int) int {
	l := s.outLease
	most := min(uint64(limit), uint64(l.Chunk), s.p.c.attr.MaxRMASize)
	k := min(uint64(want), most, framing.RingSpan(s.largeOut-l.base, l.Size, l.Size))
	if free := l.Size - (s.largeOut - max(s.largeMax, l.base)); free < k {
		// Wait for more rather than write ever smaller pieces, but not for the last
		// quarter, which the reader need not tell us of: see ringDue.
		if free <= l.Size-l.Size/4 {
			return 0
		}
		k = free
	}
	if l.unread.len() == framing.MaxWrites || s.grant == grantReplacing {
		return 0
	}
	return int(k)
}

// lacks is what a writer with n bytes left has to wait for.
func (s *stream) lacks(n int) Waits {
	p := s.p
	switch {
	case !s.mayData():
		return WaitsNothing
	case s.pend.active && s.pend.n < p.eager && !s.windowFull() && !s.forRing(n):
		return WaitsNothing
	case s.hasPending() && !p.mayData(1):
		return WaitsPeerSlots
	case s.hasPending():
		return WaitsTurn // until it has been sent
	case s.forRing(n):
		switch {
		case s.ringRoom(n, s.mostAtOnce()) == 0:
			return WaitsRing
		case !p.mayData(p.c.rule.slots()):
			return WaitsPeerSlots
		case !p.mayWrite():
			return WaitsSendSlots
		case !s.copies() && !s.conn.zeroCopy && !p.mayStage():
			return WaitsStage
		}
	case s.windowFull():
		return WaitsWindow
	case !p.mayWrite():
		return WaitsSendSlots
	case !p.mayBegin():
		return WaitsPeerSlots
	}
	return WaitsNothing
}

// itsOwn reports whether a writer waits for its stream's own credit or frames, whose arrival
// wakes it. Anything else that it waits for, others may be faster to take.
func (s *stream) itsOwn(w Waits) bool {
	return w == WaitsWindow || w == WaitsRing || s.hasPending() && w != WaitsNothing
}

// credits takes in the credits that a frame brings for our own sending. Frames may arrive in any order, so an
// earlier one may have brought more.
func (s *stream) credits(window, ring uint64) {
	if s.smallMax == 0 {
		s.smallFirst = window
	}
	grew := false
	if window = min(window, s.smallOut+math.MaxInt32); window > s.smallMax {
		s.smallMax, grew = window, true
	}
	if ring = min(ring, s.largeOut); ring > s.largeMax {
		s.largeMax, grew = ring, true
		if s.outLease != nil {
			s.outLease.unread.retire(ring)
		}
	}
	if grew && s.wr.waiting {
		s.wr.signal()
	}
}
