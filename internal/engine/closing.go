package engine

import (
	"fmt"
	"syscall"

	"github.com/seed202c38ff/fabricnet/framing"
)

// A stream ends by Fin frames, one in each direction, each answered by a
// FinAck once everything before it is in the receiver's memory: then the
// sending process may exit. A Fin with FlagClosed says that its sender takes
// nothing more either; the answer to it promises that no write of the
// answering side is in flight, so that the landing ring can be used again.

// shutWrite ends the sending direction. closed says that nothing more will be
// read either.
func (s *stream) shutWrite(closed bool) {
	if s.gone || s.p.err != nil || s.finSent && (!closed || s.finClosed) {
		return
	}
	s.finSent, s.acked = true, false
	f := ctlFrame{t: framing.TypeFin, stream: s.id, pos: s.sndNxt}
	if closed {
		s.finClosed = true
		f.flags = framing.FlagClosed
	}
	s.p.control(f)
	s.wr.signal()
}

// shutRead discards what is there and what will come.
func (s *stream) shutRead() {
	s.readShut = true
	for !s.reading {
		seg := s.segs.front()
		if seg == nil {
			break
		}
		n := seg.n
		if seg.large {
			s.consumeLarge(n)
			continue
		}
		s.segs.pop(n)
		s.freeRing()
		s.readSmall(n)
	}
	s.rd.signal()
}

// close ends both directions for the user. The stream lives on until the peer
// has everything and has promised to write no more.
func (s *stream) close() {
	s.markClosed()
	switch {
	case s.p.err != nil:
		s.remove()
	case s.remote && (s.eof || s.quiet):
		// The peer knows all that our Fin would say from the answer to its own.
	case s.opening:
		s.abort(framing.ResetAbort)
		return
	default:
		s.shutWrite(true)
	}
	s.ackFin()
	s.tryRemove()
}

func (s *stream) markClosed() {
	if !s.closed {
		s.closed, s.closedAt = true, s.p.c.now()
		s.p.c.lingering++
		s.p.c.touch(s.p) // the tail goes
	}
	s.dropHeld()
	s.rd.signal()
	s.wr.signal()
}

// abort ends the stream at once, and tells the peer.
func (s *stream) abort(code framing.ResetCode) {
	s.markClosed()
	s.dropPending()
	if s.p.err != nil {
		s.remove()
		return
	}
	if !s.remote || !s.eof && !s.quiet {
		s.finSent, s.finClosed, s.due = true, true, code
		s.sendReset()
	}
	s.ackFin()
	s.tryRemove()
}

// sendReset sends a Reset that is due. It promises that no write is in flight.
func (s *stream) sendReset() {
	if s.due != 0 && s.writing == 0 {
		s.p.reset(s.id, s.due)
		s.due = 0
	}
}

// tryRemove forgets a stream that the user has closed, once neither side can
// have a write in flight and each knows that of the other.
func (s *stream) tryRemove() {
	if s.closed && s.writing == 0 && !s.owed && (s.quiet || s.remote && s.eof) {
		s.remove()
	}
}

// finished takes a Fin frame in.
func (s *stream) finished(pos uint64, closed bool) error {
	if s.wasCut { // by a Reset that overtook it
		s.owed = true
		s.ackFin()
		return nil
	}
	if s.finKnown && pos != s.finPos || pos < s.rcvNxt {
		return fmt.Errorf("%w: stream ends at %d, and at %d", errProtocol, pos, s.rcvNxt)
	}
	s.finKnown, s.finPos, s.owed = true, pos, true
	s.wanting = false
	if closed && !s.remote {
		s.remote = true
		s.dropPending()
		s.wr.signal()
	}
	s.checkFin()
	return nil
}

// checkFin ends the receiving direction once everything has arrived.
func (s *stream) checkFin() {
	if !s.finKnown || s.rcvNxt != s.finPos && !s.deaf() {
		return
	}
	if !s.eof && s.rcvNxt == s.finPos {
		s.eof = true
		s.endLease()
		s.rd.signal()
	}
	s.ackFin()
}

// endLease takes in that the peer writes no more: that is as good as a Return.
func (s *stream) endLease() {
	if s.inLease != nil {
		_ = s.inLease.Return(s.largeIn)
		s.dropLease()
	}
}

// ackFin answers the peer's Fin when its conditions hold.
func (s *stream) ackFin() {
	if !s.owed || s.gone || s.remote && s.writing > 0 || s.rcvNxt != s.finPos && !s.deaf() {
		return
	}
	s.owed = false
	f := ctlFrame{t: framing.TypeFinAck, stream: s.id, pos: s.finPos}
	if s.remote {
		f.flags = framing.FlagClosed
	}
	s.p.control(f)
	s.tryRemove()
}

// finAcked takes the answer to our Fin in.
func (s *stream) finAcked(closed bool) {
	if s.finClosed && !closed {
		return // answers the Fin before the one with FlagClosed
	}
	s.acked = true
	s.quiet = s.quiet || closed
	s.wr.signal()
	s.tryRemove()
}

// wasReset takes a Reset frame in.
func (s *stream) wasReset(code framing.ResetCode) {
	opening := s.opening
	s.remote, s.quiet, s.wasCut, s.owed = true, true, true, true
	if s.err == nil && !s.eof {
		s.err = resetError(code, opening)
	}
	s.opening = false
	s.acked = true
	s.dropPending()
	s.dropHeld()
	s.endLease()
	s.rd.signal()
	s.wr.signal()
	s.ackFin()
}

// delivered reports that a stream which the user has closed needs nothing more
// of this process.
func (s *stream) delivered() bool { return s.gone || s.acked || s.p.err != nil }

// writeError is why nothing can be written any more, nil if it can.
func (s *stream) writeError() error {
	switch {
	case s.closed:
		return errClosed
	case s.err != nil:
		return s.err
	case s.p.err != nil, s.remote, s.finSent:
		return syscall.EPIPE
	}
	return nil
}
