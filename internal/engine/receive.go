package engine

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
)

// received takes in the frame that arrived in a receive slot, and posts the slot
// again unless the frame is held there because of a gap before it.
func (c *core) received(slot uint32, n int) {
	var h framing.Header
	frame := c.rx.Bytes(slot)
	payload, err := h.Decode(frame[:min(max(n, 0), len(frame))])
	p := c.peers[h.Peer]
	// The proofs are compared as a whole: no early exit tells how much of a guess was right.
	// Before Connect nothing honest can arrive, since both sides insert each other first.
	if err != nil || p == nil || p.err != nil || !p.linked || p.proofIn^h.Proof != 0 {
		c.stats.FramesDropped++
		c.repost(slot, nil)
		return
	}
	c.stats.FramesReceived++
	p.signs++
	c.touch(p)
	if framing.SlotsAfter(h.Slots, p.credit) > 0 { // frames may arrive in any order
		p.credit = h.Slots
	}
	if !p.answers.Load() {
		p.answers.Store(true)
		c.metAt = c.now()
	}
	if !p.useSlot() {
		c.repost(slot, nil)
		return
	}
	keep, err := p.handle(&h, payload, slot)
	if !keep {
		c.repost(slot, p)
	}
	p.violates(err)
}

// violates ends the peer if err, about what it has sent, is not nil.
func (p *peer) violates(err error) {
	if err != nil {
		p.c.stats.Violations++
		p.doom(err)
	}
}

// handle takes in a frame whose proof is right, and which has used a credit. keep says that the frame
// stays in its slot for now.
func (p *peer) handle(h *framing.Header, payload []byte, slot uint32) (keep bool, err error) {
	switch h.Type {
	case framing.TypeOpen:
		return false, p.opened(h, payload)
	case framing.TypeCredit:
		return false, framing.DecodeCredits(payload, func(cr framing.Credit) {
			if s := p.streams[cr.Stream]; s != nil {
				s.credits(cr.Window, cr.Ring)
			}
		})
	}
	s := p.streams[h.Stream]
	if s == nil {
		p.stray(h)
		return false, nil
	}
	s.credits(h.Window, h.Ring)
	return s.handle(h, payload, slot)
}

// stray answers a frame for a stream that is gone here: a closing side must
// hear that nothing more will come.
func (p *peer) stray(h *framing.Header) {
	switch {
	case h.Type == framing.TypeAccept: // of a conn that was given up before
		p.reset(h.Stream, framing.ResetAbort)
	case h.Type == framing.TypeReset || h.Type == framing.TypeFin && h.Flags&framing.FlagClosed != 0:
		p.control(ctlFrame{t: framing.TypeFinAck, flags: framing.FlagClosed, stream: h.Stream, pos: h.Pos})
	default:
		p.c.stats.FramesStray++
	}
}

func (s *stream) handle(h *framing.Header, payload []byte, slot uint32) (keep bool, err error) {
	switch h.Type {
	case framing.TypeAccept:
		if s.closed() {
			// The conn was given up here, but our Reset may have overtaken the Open. If so,
			// it was answered without having ended anything.
			s.p.reset(s.id, framing.ResetAbort)
			return false, nil
		}
		return false, s.accepted(payload)
	case framing.TypeData:
		if h.Flags&framing.FlagWant != 0 && !s.checks {
			s.wanted()
		}
		return s.data(h.Pos, payload, slot)
	case framing.TypeLarge:
		return false, s.announced(h, payload)
	case framing.TypeWant:
		switch {
		case s.checks: // it has the one ring that it gets
		case h.Pos > 0:
			s.filled(h.Pos - 1)
		default:
			s.wanted()
		}
	case framing.TypeLease:
		return false, s.leased(payload)
	case framing.TypeRevoke:
		s.revoked()
	case framing.TypeReturn:
		if h.Flags&framing.FlagWant != 0 {
			s.refused()
			return false, nil
		}
		return false, s.returned(h.Pos)
	case framing.TypeFin:
		return false, s.finished(h.Pos, h.Flags&framing.FlagClosed != 0)
	case framing.TypeFinAck:
		s.finAcked(h.Flags&framing.FlagClosed != 0)
	case framing.TypeReset:
		code, err := framing.DecodeReset(payload)
		if err != nil {
			return false, err
		}
		s.wasReset(code)
	}
	return false, nil
}

// accepted takes in an Accept frame.
func (s *stream) accepted(payload []byte) error {
	var a framing.Accept
	if err := a.Decode(payload); err != nil {
		return err
	}
	if s.port == 0 {
		s.port = a.Port
		s.rd.signal()
		s.grantForCheck()
	}
	return nil
}

// heldFrame is a Data frame that arrived before something that precedes it.
// It stays in its receive slot, and the peer does not get the credit for that slot
// back until the gap is filled, which bounds what can be held.
type heldFrame struct {
	pos  uint64
	slot uint32
	n    int
}

// dropHeld posts the slots of held frames again: the gap before them will not
// be filled, or nobody will read them.
func (s *stream) dropHeld() {
	for _, f := range s.held {
		s.p.c.repost(f.slot, s.p)
	}
	s.held = nil
}

// data takes in small data.
func (s *stream) data(pos uint64, payload []byte, slot uint32) (keep bool, err error) {
	switch {
	case len(payload) == 0 || s.discarding() || pos < s.rcvNxt:
		return false, nil
	case s.recv.ends() && pos+uint64(len(payload)) > s.finPos:
		return false, errProtocol
	case pos > s.rcvNxt:
		at, dup := slices.BinarySearchFunc(s.held, pos, func(f heldFrame, pos uint64) int {
			return cmp.Compare(f.pos, pos)
		})
		if dup {
			return false, nil
		}
		s.held = slices.Insert(s.held, at, heldFrame{pos, slot, len(payload)})
		s.p.c.stats.FramesHeld++
		return true, nil
	}
	if err := s.takeSmall(payload); err != nil {
		return false, err
	}
	return false, s.advance()
}

// takeSmall appends the next bytes of the stream to the buffer of a reader
// that waits, or else to the reassembly rings.
func (s *stream) takeSmall(b []byte) error {
	n := len(b)
	s.rcvNxt += uint64(n)
	s.smallIn += uint64(n)
	if s.smallIn > s.promised || s.recv.ends() && s.rcvNxt > s.finPos {
		return errProtocol // more than we promised memory for, or beyond its Fin
	}
	s.info.SmallIn += uint64(n)
	s.stats.SmallReceived += uint64(n)
	if s.shut {
		s.readSmall(n)
		return nil
	}
	if len(s.direct) > 0 && s.segs.empty() {
		m := copy(s.direct, b)
		s.direct = s.direct[m:]
		s.directN += m
		s.readSmall(m)
		b = b[m:]
	}
	if len(b) > 0 {
		if err := s.reassemble(b); err != nil {
			return err
		}
		s.stats.Copies.Reassembled += uint64(len(b))
		s.segs.push(false, len(b))
		s.promise()
	}
	s.rd.signal()
	return nil
}

// advance takes in whatever has become next in line: landed writes and held
// frames, in stream order, then the end of the stream.
func (s *stream) advance() error {
	for {
		took, err := s.takeLanded()
		if err != nil {
			return err
		}
		if len(s.held) > 0 && s.held[0].pos <= s.rcvNxt {
			f := s.held[0]
			s.held = slices.Delete(s.held, 0, 1)
			if f.pos == s.rcvNxt {
				err = s.takeSmall(s.p.c.rx.Bytes(f.slot)[framing.HeaderSize:][:f.n])
			}
			s.p.c.repost(f.slot, s.p)
			took = true
		}
		if err != nil {
			return err
		}
		if !took {
			break
		}
	}
	s.checkFin()
	return nil
}

// failing is what is known of receives that fail. Strangers at a provider's port can make
// them fail: over net and tcp, each connection that ends in the middle of a message cancels
// a receive that could have been anybody's. So failed receives are posted again: as many as
// there are slots at once in each choreTime, while the rest wait for chores, or it would go
// on for ever if all failed. An endpoint where receives have done nothing but fail for
// DeadAfter is of no use.
type failing struct {
	inRow  int       // receives that have failed since one has not
	since  time.Time // when the first of these did
	reused int       // receives posted again since chores last ran
	late   []uint32  // slots of those that wait for chores
}

// failedRecv posts a failed receive again, at once or later.
func (c *core) failedRecv(slot uint32, err error) {
	c.stats.CQErrors++
	f := &c.failing
	if f.inRow == 0 {
		f.since = c.now()
	}
	switch f.inRow++; {
	case f.inRow > c.rx.Len() && c.now().Sub(f.since) > c.cfg.DeadAfter:
		c.breakdown(fmt.Errorf("receiving: %w", err))
	case f.reused < c.rx.Len():
		f.reused++
		c.repost(slot, nil)
	default:
		f.late = append(f.late, slot)
	}
}

// postLate posts the receives that wait for chores, which calls it.
func (c *core) postLate() {
	late := c.failing.late
	c.failing.late, c.failing.reused = nil, len(late)
	for _, slot := range late {
		c.repost(slot, nil)
	}
}
