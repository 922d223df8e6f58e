package engine

import "github.com/seed202c38ff/fabricnet/framing"

// pending is small data that was written but could not be sent at once. Later
// small writes join it, so that a backlog leaves in few sends. A lone write is
// never kept waiting.
type pending struct {
	active bool
	slot   uint32
	n      int
	pos    uint64
	flags  framing.Flags
	spill  int // see txOp
}

// outLease is a landing ring that the peer has granted us. Ring positions
// count the large bytes since the start of the stream, over all its leases.
type outLease struct {
	framing.Lease
	base uint64 // ring position at which the lease began
	seq  uint16
	full bool   // the peer was told that the ring is too small
	last int    // length of the last write; 0 before the first
	end  uint64 // stream position behind it

	unread writeLog

	mem    []byte      // the ring, if it is mapped here
	mapped *mappedSlab // byCopy: the slab in which it lies
}

// trySmall sends or queues as much of b as the window and the send slots allow.
func (s *stream) trySmall(b []byte) (n int) {
	c := s.p.c
	for n < len(b) {
		room := s.smallRoom()
		if room == 0 {
			c.stats.Stalls.Window++
			return n
		}
		if !s.pend.active {
			if !s.p.mayBegin() {
				s.p.lackSends()
				return n
			}
			slot, _ := c.tx.Get()
			s.p.holdSends(0, 1)
			s.pend = pending{active: true, slot: slot, pos: s.sndNxt}
			if s.grant == grantAsking {
				s.pend.flags, s.grant = framing.FlagWant, grantAsked
			}
		}
		m := min(len(b)-n, int(room), s.p.eager-s.pend.n)
		if m == 0 { // the frame is full, and could not leave
			// A second one may wait behind it: spilled frames are short, and a writer that runs
			// ahead of its peer should not have to wait for so little.
			if s.p.spill.Own == nil || s.full.active {
				return n
			}
			s.full, s.pend = s.pend, pending{}
			continue
		}
		copy(c.tx.Bytes(s.pend.slot)[framing.HeaderSize+s.pend.n:], b[n:n+m])
		s.pend.n += m
		s.sndNxt += uint64(m)
		s.smallOut += uint64(m)
		s.info.SmallOut += uint64(m)
		s.stats.SmallSent += uint64(m)
		n += m
		if s.p.pending.len() > 0 || !s.sendPending() {
			if !s.queued {
				s.queued = true
				s.p.pending.push(s)
			}
			s.spillPending(b[n-m : n])
		}
	}
	return n
}

// hasPending reports whether small data waits to leave.
func (s *stream) hasPending() bool { return s.full.active || s.pend.active }

// spillPending spills the bytes that were just added to the coalesced data: see spill.go.
func (s *stream) spillPending(b []byte) {
	if s.p.spill.Own == nil {
		return
	}
	if s.pend.spill == 0 {
		s.pend.spill = 1 + s.p.beginSpill(s.id, s.pend.pos)
	}
	s.p.addSpill(s.pend.spill-1, b)
}

// sendPending queues the coalesced data, in frames, as far as receive slots of the peer are free. It
// reports whether that was all.
func (s *stream) sendPending() bool {
	return s.sendFrame(&s.full) && s.sendFrame(&s.pend)
}

// sendFrame is sendPending for one frame.
func (s *stream) sendFrame(pend *pending) bool {
	if !pend.active {
		return true
	}
	if !s.p.mayLeave() {
		s.p.c.stats.Stalls.PeerSlots++
		return false
	}
	d := *pend
	*pend = pending{}
	s.p.sentSmall++
	s.p.holdSends(0, -1)
	s.leaving++
	s.p.queue(&ctlFrame{t: framing.TypeData, flags: d.flags, stream: s.id, pos: d.pos, leaves: s, spill: d.spill}, s, d.slot, d.n, false)
	s.wr.signal()
	if s.checks { // see pushCheck
		s.p.c.touch(s.p)
	}
	return true
}

func (s *stream) dropPending() {
	for _, pend := range []*pending{&s.full, &s.pend} {
		if pend.active {
			if pend.spill > 0 {
				s.p.endSpill(pend.spill - 1)
			}
			s.p.c.tx.Put(pend.slot)
			*pend = pending{}
			s.p.holdSends(0, -1)
			s.p.c.touch(s.p) // it may be allowed more now
		}
	}
}

// writeFrames sends data in frames: all small data, and large data as long as
// there is no ring for it.
func (s *stream) writeFrames(b []byte) int {
	if len(b) > s.p.eager && s.p.c.rule != byNothing && !s.conn.small {
		switch {
		case s.ringServes():
			return 0 // b goes to the ring, when there is room
		case s.holds() && s.p.c.rule != byCopy: // staging memory was given back while the ring was full: see trimStage
			s.p.c.wantStage()
		case s.grant == grantNone:
			s.ask()
		}
		b = b[:s.p.eager] // one frame at a time, so that a lease is noticed when it comes
	}
	b = b[:min(len(b), lockedCopy/2)]
	n := s.trySmall(b)
	s.p.c.push(s.p)
	return n
}

// ask asks the peer for a landing ring, by the next Data frame or else by a Want frame.
func (s *stream) ask() {
	if !s.hasPending() && !s.windowFull() && s.p.mayWrite() {
		s.grant = grantAsking
		return
	}
	s.grant = grantAsked
	s.p.control(ctlFrame{t: framing.TypeWant, stream: s.id})
}

// leased takes in a Lease frame.
func (s *stream) leased(payload []byte) error {
	l := new(outLease)
	if err := l.Decode(payload); err != nil {
		return err
	}
	if s.offer != nil || s.outLease != nil && s.grant != grantHeld || s.p.c.rule == byNothing {
		return errProtocol
	}
	s.offer = l
	if s.p.c.rule != byCopy {
		s.hold()
		return nil
	}
	l.mapped = s.p.mapping(&l.Remote)
	l.mapped.leases++
	if l.mapped.slab != nil {
		s.located()
	}
	return nil
}

// located takes in that the memory of the lease on offer is mapped, or cannot be.
func (s *stream) located() {
	l := s.offer
	if l.mem = l.mapped.within(&l.Remote, l.Size); l.mem == nil && s.outLease != nil {
		s.refuse()
		return
	}
	s.hold()
	s.p.c.touch(s.p) // see pushCheck
}

// hold puts the lease to use that was offered. If the stream has one already, that goes back, once no
// write to it is in flight.
func (s *stream) hold() {
	l, recalled := s.offer, s.grant == grantRecalled
	if s.outLease != nil {
		if s.writing > 0 {
			s.grant = grantReplacing
			s.p.c.touch(s.p) // its writer waits for that now, and others can go first
			return
		}
		s.offer = nil
		s.returnRing()
	}
	l.base = s.largeOut
	s.grant, s.offer, s.outLease = grantHeld, nil, l
	if s.p.c.rule != byCopy && !s.p.c.hasStage() {
		// Ask now, not at the first write: while many writers wait for receive slots, the two
		// that this write takes are never free at the same time, and a writer waits for two
		// only if there is staging memory: see lacks.
		s.p.c.wantStage()
	}
	if recalled {
		s.revoked()
	}
	s.endMapped()
	s.wr.signal()
}

// holds reports whether the stream has a ring that it may write to.
func (s *stream) holds() bool { return s.grant == grantHeld || s.grant == grantReplacing }

// copies reports whether the stream has a ring that is mapped here.
func (s *stream) copies() bool { return s.holds() && s.outLease.mem != nil }

// unmapped reports whether the stream has a ring that was to be mapped here and could not be.
func (s *stream) unmapped() bool { return s.p.c.rule == byCopy && s.holds() && s.outLease.mem == nil }

// ringServes reports whether the stream's large data goes to its ring, and not in frames.
func (s *stream) ringServes() bool {
	if s.p.c.rule == byCopy {
		return s.copies()
	}
	return s.holds() && (s.conn.zeroCopy || s.p.c.hasStage())
}

// dropGrant forgets the rings that the peer has granted to the stream, or is to grant.
func (s *stream) dropGrant() {
	for _, l := range []*outLease{s.outLease, s.offer} {
		if l != nil && l.mapped != nil {
			l.mapped.leases--
		}
	}
	s.grant, s.offer, s.outLease = grantNone, nil, nil
}

// revoked takes in that the peer wants its ring back.
func (s *stream) revoked() {
	switch s.grant {
	case grantAsking, grantAsked: // the Revoke overtook the Lease
		s.grant = grantRecalled
	case grantHeld:
		s.grant = grantReturning
		s.giveBack()
		s.wr.signal() // a writer that waited for room in the ring sends frames now
	}
}

// giveBack returns a lease that was revoked, or replaced, once no write to it is in flight.
func (s *stream) giveBack() {
	switch {
	case s.writing > 0 || s.gone():
	case s.grant == grantReplacing:
		s.hold()
	case s.grant == grantReturning:
		s.returnRing()
		s.wr.signal()
	}
}

func (s *stream) returnRing() {
	s.dropGrant()
	s.p.control(ctlFrame{t: framing.TypeReturn, stream: s.id, pos: s.largeOut})
}

// block notes that a writer waits, and queues it if others can use up what it
// waits for. If it had its turn but somebody else was faster, it keeps its turn.
func (s *stream) block() {
	s.wr.waiting = true
	lacks := s.lacks(s.conn.left)
	if lacks == WaitsRing {
		s.askMore()
	}
	if s.itsOwn(lacks) {
		if s.p.blocked.len() > 0 { // it may have been woken to take what it cannot use: the next one may
			s.p.c.touch(s.p)
		}
		return
	}
	if lacks == WaitsStage {
		s.p.awaitStage()
	}
	if s.writer == writerBlocked {
		return
	}
	s.writer = writerBlocked
	if s.turn == s.sndNxt+1 {
		s.p.blocked.unpop(s)
	} else {
		s.p.blocked.push(s)
	}
	s.p.c.blocked++
}

// wakeWriters wakes the peer's writers in the order in which they came, but no
// more than can go on: if it woke a thousand, all but a few would only queue
// again.
func (p *peer) wakeWriters() {
	c := p.c
	for ; p.blocked.len() > 0; p.blocked.pop() {
		s := *p.blocked.first()
		c.stats.steps++
		if s.wr.waiting && s.mayData() { // if not, it may be Close or CloseWrite that waits
			if p.awake > 0 && !p.mayData(uint32(2*p.awake+2)) {
				break // until one is back, or the peer has granted more
			}
			if lacks := s.lacks(s.conn.left); lacks != WaitsNothing && !s.itsOwn(lacks) {
				if lacks == WaitsStage {
					p.awaitStage()
				}
				break
			}
			s.writer, s.turn = writerAwake, s.sndNxt+1
			c.awake++
			p.awake++
			s.wr.signal()
		}
		if s.writer == writerBlocked {
			s.writer = writerFree
		}
		c.blocked--
	}
}

// woke notes that a writer is back which wakeWriters has woken, or its own stream.
func (s *stream) woke() {
	switch s.writer {
	case writerBlocked:
		s.p.c.touch(s.p) // those behind it need not wait for it
	case writerAwake:
		s.writer = writerFree
		s.p.awake--
		s.p.c.awake--
		s.p.c.freed = s.p.c.freed || s.p.c.stageLine.len() > 0 // serve left chunks to it
		if s.p.blocked.len() > 0 {
			s.p.c.touch(s.p)
		}
	}
}
