package engine

import (
	"math"

	"github.com/seed202c38ff/fabricnet/framing"
)

// What a sender may use: four budgets that the peer or the provider grants (framing/SPEC.md,
// section 4), and its share of what all peers of an endpoint have in common. A sender asks
// here before it sends, and learns here what it has to wait for.
//
//	budget            may                  is taken by        comes back by
//	window            smallRoom            smallOut           Window of a frame
//	ring              ringRoom             place              Ring of a frame
//	peer's slots      mayData, mayCtl      spend              Slots of a frame
//	operations        mayFly               takeOp             a completion
//	send slots        mayWrite, mayFrame   c.tx.Get           the same
//	staging memory    mayStage             takeStage          the same
//
// What all peers share must not end up with peers that have stopped taking anything, as a
// suspended process does until its heartbeats run out. So a peer may hold no more than what is
// left when it asks, and a part of what is left is reserved for peers that hold nothing: one for
// each peer if there are that many, and at least an eighth. The first peer that stops ends up
// with less than half, the next with less than half of the rest, and so on. There are enough send
// slots (see most) that the others have one each, however many peers stop. A peer that makes
// progress gives back what it holds and gets more. What dead peers hold is made up for.

// sendCredit is what we may use of the peer's receive slots. used + given never exceeds
// credit.
type sendCredit struct {
	credit framing.SlotCursor // slots granted to us
	used   uint32
	given  uint32 // given back, as the peer was told
	asked  uint32 // slots that it wants back, ever
}

// spend takes so many of the slots.
func (s *sendCredit) spend(slots uint32) { s.used += slots }

// unspend takes that back before anything was sent.
func (s *sendCredit) unspend(slots uint32) { s.used -= slots }

// avail is how many of the peer's slots we may use.
func (s *sendCredit) avail() uint32 { return uint32(s.credit) - s.used - s.given }

// mayData reports whether n slots may be used for data. One always remains.
func (p *peer) mayData(n uint32) bool { return p.linked && p.avail() > n }

// mayLeave reports whether a frame of data may be sent at once. Where large data is copied, control
// frames go first: data that overtook the announcement of a copy would take the slot that this needs.
func (p *peer) mayLeave() bool { return p.mayData(1) && (p.c.rule != byCopy || p.ctl.len() == 0) }

// mayCtl reports whether a control frame may be sent. The last slot is kept
// for a frame that brings the peer a new one, so that two sides that are both
// down to their last slot never wait for each other.
func (p *peer) mayCtl() bool {
	a := p.avail()
	return p.linked && (a > 1 || a == 1 && p.granted != p.advertised)
}

// mayHave reports whether a peer that holds held of something gets one more of those left.
func (c *core) mayHave(held, free, all, peers int) bool {
	return held == 0 && free > 0 || held <= c.mostHeld(free, all, peers)
}

// mostHeld is the most that a peer may hold and still get one more. It leaves out what is reserved
// for peers that hold nothing, of which there may be as many as peers says: all others.
func (c *core) mostHeld(free, all, peers int) int {
	switch {
	case free <= 0:
		return -1
	case c.attr.PerPeer: // which has no others
		return all
	}
	return free - max(all/8, min(peers, max(all/2, all-64))) - 1
}

// mayWrite reports whether data gets a send slot.
func (p *peer) mayWrite() bool {
	free, all, peers := p.c.dataSlots()
	return p.c.mayHave(p.frames+p.pends, free, all, peers)
}

// mayBegin reports whether a frame of small data gets a send slot. A frame that cannot leave at
// once keeps its send slot until the peer has a receive slot for it, which may be never: such a
// frame gets none of those that others need.
func (p *peer) mayBegin() bool {
	if p.c.attr.SameHost && !p.maySpill() && (p.pending.len() > 0 || !p.mayLeave()) {
		return false // what Write has returned for must outlive the process
	}
	return p.mayWrite() && (p.pending.len() == 0 && p.mayData(1) || p.frames+p.pends <= p.c.mostHeld(p.c.dataSlots()))
}

// mayFrame reports whether a control frame gets a send slot. Data that waits for a
// receive slot does not count: the frame that brings the slot must not wait for the data.
func (p *peer) mayFrame() bool {
	return p.c.tx.Free() > 0 && (p.frames == 0 || p.c.attr.PerPeer || p.frames <= p.c.mostHeld(p.c.dataSlots()))
}

// mayStage reports whether an RDMA write gets a staging chunk.
func (p *peer) mayStage() bool {
	free, all, peers := p.c.chunks()
	return p.c.mayHave(p.staged, free, all, peers)
}

// mayFly reports whether the fabric gets another operation.
func (p *peer) mayFly() bool {
	free, all, peers := p.c.operations()
	return p.c.mayHave(p.flying, free, all, peers)
}

// queueLeft is how many more operations there may be in flight. Those of dead peers count only
// as far as they exceed what the provider has beyond depth.
func (c *core) queueLeft() int { return min(c.depth+c.dead.flying, c.attr.TxDepth) - c.flying }

// smallRoom is how many bytes of small data the peer has room for.
func (s *stream) smallRoom() uint64 { return framing.Cursor(s.smallOut).Room(uint64(s.smallMax)) }

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
	case !p.mayData(p.c.strategy().slots):
		p.c.stats.Stalls.PeerSlots++
	case !p.mayWrite():
		p.c.stats.Stalls.SendSlots++
	default:
		return k
	}
	return 0
}

// ringRoom is largeRoom as far as the stream's own ring is concerned.
func (s *stream) ringRoom(want, limit int) int {
	l := s.outLease
	k := min(uint64(want), uint64(limit), s.maxWrite(), framing.RingSpan(s.largeOut-l.base, l.Size, l.Size))
	if free := l.Size - (s.largeOut - max(uint64(s.largeMax), l.base)); free < k {
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

// maxWrite is the most that one RDMA write to the stream's lease carries.
func (s *stream) maxWrite() uint64 { return min(uint64(s.outLease.Chunk), s.p.c.attr.MaxRMASize) }

// lacks is what a writer with n bytes left has to wait for.
func (s *stream) lacks(n int) Waits {
	c, p := s.p.c, s.p
	switch {
	case !s.mayData():
		return WaitsNothing
	case s.hasPending():
		switch {
		case s.pend.active && s.pend.n < p.eager && !s.windowFull() && !s.forRing(n):
			return WaitsNothing
		case !p.mayData(1):
			return WaitsPeerSlots
		}
		return WaitsTurn // until it has been sent
	case s.forRing(n):
		k := s.ringRoom(n, s.mostAtOnce())
		switch {
		case k == 0:
			return WaitsRing
		case !p.mayData(c.strategy().slots):
			return WaitsPeerSlots
		case !p.mayWrite():
			return WaitsSendSlots
		case !s.copies() && !s.conn.zeroCopy && !p.mayStage():
			return WaitsStage
		}
	case s.windowFull():
		return WaitsWindow
	case !p.mayBegin() && p.mayWrite() && c.attr.SameHost:
		return WaitsPeerSlots
	case !p.mayBegin():
		return WaitsSendSlots
	}
	return WaitsNothing
}

// itsOwn reports whether a writer waits for its stream's own credit or frames, whose arrival
// wakes it. Anything else that it waits for, others may be faster to take.
func (s *stream) itsOwn(w Waits) bool {
	return w == WaitsWindow || w == WaitsRing || s.hasPending() && w != WaitsNothing
}

// credits takes in the credits that a frame brings for our own sending.
func (s *stream) credits(window, ring uint64) {
	if s.smallMax == 0 {
		s.smallFirst = window
	}
	grew := s.smallMax.Advance(min(window, s.smallOut+math.MaxInt32)) > 0
	if s.largeMax.Advance(min(ring, s.largeOut)) > 0 {
		grew = true
		if s.outLease != nil {
			s.outLease.unread.retire(ring)
		}
	}
	if grew && s.wr.waiting {
		s.wr.signal()
	}
}
