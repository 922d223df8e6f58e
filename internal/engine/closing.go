package engine

import (
	"fmt"
	"slices"
	"syscall"

	"github.com/seed202c38ff/fabricnet/framing"
)

// A stream ends with a Fin frame in each direction. The receiver answers it with a
// FinAck once everything before it is in the receiver's memory. A Fin with FlagClosed says
// that its sender takes nothing more either. The answer to that promises that no write of
// the answering side is in flight, so that the landing ring can be used again.
//
// As in TCP, a process may exit after Close or CloseWrite: they wait until it is not needed any
// more (see hasLeft). For that they need what the peer's engine gives back, but not its user,
// since room in the peer's memory was taken before Write returned. A peer that has given nothing
// back for a while is stopped, or cut off, and is not waited for (see Conn.awaitLeft). What it has
// not taken goes on in the background.

// shutWrite ends the sending direction. closed says that nothing more will be
// read either.
func (s *stream) shutWrite(closed bool) {
	e, f := evCloseWrite, ctlFrame{t: framing.TypeFin, stream: s.id, pos: s.sndNxt, leaves: s}
	if closed {
		e, f.flags = evClose, framing.FlagClosed
	}
	if s.gone() || s.p.err != nil || !s.send.move(e) {
		return
	}
	s.leaving++
	s.p.control(f)
	s.endMapped()
	s.wr.signal()
}

// shutRead discards what has arrived and what is still to come.
func (s *stream) shutRead() {
	s.shut = true
	for !s.copying && !s.segs.empty() {
		seg := s.segs.front()
		n := seg.n
		if seg.large {
			s.consumeLarge(n)
			continue
		}
		s.segs.pop(n)
		s.freeRings()
		s.readSmall(n)
	}
	s.rd.signal()
}

// close ends both directions for the user. The stream lives on until the peer
// has everything and has promised to write no more.
func (s *stream) close() {
	if s.opening() {
		s.abort()
		return
	}
	s.markClosed()
	if !s.over() { // else the answer to the peer's own Fin tells it everything that ours would say
		s.shutWrite(true)
	}
	s.ackFin()
	s.tryRemove()
}

func (s *stream) markClosed() {
	if !s.closed() {
		s.closedAt = s.p.c.now()
		s.p.c.lingering++
		if !s.checks {
			s.p.closed.Add(1)
		}
	}
	s.dropHeld()
	s.endMapped()
	s.rd.signal()
	s.wr.signal()
}

// abort ends the stream at once and tells the peer.
func (s *stream) abort() {
	s.markClosed()
	s.dropPending()
	if !s.over() && s.send.move(evAbort) {
		s.sendReset()
	}
	s.ackFin()
	s.tryRemove()
}

// sendReset sends the Reset that is due, unless a write is in flight: the Reset promises that
// none is.
func (s *stream) sendReset() {
	if s.writing == 0 && s.send.move(evResetSent) {
		s.p.reset(s.id, framing.ResetAbort)
	}
}

// over reports whether the peer writes nothing more, and takes nothing.
func (s *stream) over() bool { return s.quiet() || s.peerClosed && s.recv == recvEOF }

// tryRemove forgets a stream that the user has closed, once neither side can
// have a write in flight and each knows that of the other.
func (s *stream) tryRemove() {
	if s.closed() && s.writing == 0 && !s.finAckDue && s.over() {
		s.remove()
	}
}

// maxUnanswered is how many streams of a peer may have ended without its answer before the
// peer gets no further ones. Each of them keeps little more than its landing ring, but keeps
// that until the peer answers or is lost.
const maxUnanswered = 64

var errUnanswered = fmt.Errorf("the peer does not answer the end of more than %d conns", maxUnanswered)

// checkCloses ends streams whose close the peer has not answered for DeadAfter, each by
// itself. It does so only if for as long nothing has come from the peer, and nothing for the
// peer was posted or has completed: a path may be slow, and the answer comes after all data.
func (p *peer) checkCloses() {
	now := p.c.now()
	if p.moved || p.tally.came != p.cameThen {
		p.cameThen, p.movedAt = p.tally.came, now
	}
	if p.unanswered = 0; p.c.lingering == 0 {
		return
	}
	for _, s := range slices.Backward(p.list) {
		since := s.closedAt
		if since.Before(p.movedAt) {
			since = p.movedAt
		}
		if s.closed() && now.Sub(since) > p.c.cfg.DeadAfter {
			s.abort()
		}
		if s.closed() && now.Sub(s.closedAt) > p.c.cfg.DeadAfter {
			p.unanswered++
		}
	}
}

// finished takes in a Fin frame.
func (s *stream) finished(pos uint64, closed bool) error {
	if s.recv == recvCut { // by a Reset that overtook the Fin
		s.finAckDue = true
		s.ackFin()
		return nil
	}
	if s.recv.ends() && pos != s.finPos || pos < s.rcvNxt {
		return fmt.Errorf("%w: stream ends at %d, and at %d", errProtocol, pos, s.rcvNxt)
	}
	s.recv = max(s.recv, recvFin)
	s.finPos, s.finAckDue = pos, true
	s.dropClaim()
	if closed {
		s.peerCloses()
	}
	s.checkFin()
	return nil
}

// checkFin ends the receiving direction once everything has arrived.
func (s *stream) checkFin() {
	if !s.recv.ends() {
		return
	}
	if s.rcvNxt == s.finPos && s.recv == recvFin {
		s.recv = recvEOF
		s.endLease()
		s.rd.signal()
	}
	s.ackFin()
}

// endLease takes in that the peer writes no more, which is as good as a Return.
func (s *stream) endLease() {
	if s.inLease != nil {
		_ = s.inLease.endAt(s.largeIn)
		s.leaseEnds()
		s.dropNext()
		s.dropLease()
	}
}

// ackFin answers the peer's Fin or Reset, once what the answer says is true.
func (s *stream) ackFin() {
	if !s.finAckDue || s.gone() || s.peerClosed && s.writing > 0 || s.rcvNxt != s.finPos && !s.discarding() {
		return
	}
	s.finAckDue = false
	f := ctlFrame{t: framing.TypeFinAck, stream: s.id, pos: s.finPos}
	if s.peerClosed {
		f.flags = framing.FlagClosed
	}
	s.p.control(f)
	s.tryRemove()
}

// finAcked takes in the answer to our Fin or Reset.
func (s *stream) finAcked(closed bool) {
	e := evAcked // the answer may be to a Fin that we sent before the one with FlagClosed
	if closed {
		e = evCloseAcked
	}
	if s.send.move(e) {
		s.wr.signal()
		s.tryRemove()
	}
}

// wasReset takes in a Reset frame.
func (s *stream) wasReset(code framing.ResetCode) {
	err := resetError(code, s.opening())
	if s.checks {
		err = checkError(code, s.opening())
	}
	s.cut(err, evRefused)
	s.finAckDue = true
	s.endLease()
	s.ackFin()
}

// hasLeft reports whether a stream whose sending direction has ended needs nothing more of this
// process. Over shared memory that is so once all frames are posted, and all writes and other sends
// complete: everything is then injected, or copied to a mapped ring, to where it outlives the process. Elsewhere the peer has it. Completions would not do: over tcp they
// come once the kernel has the data, and when the peer next sends something to a process that
// has exited, its provider drops the connection with what it has not read.
func (s *stream) hasLeft() bool {
	return s.settled() || s.peerClosed || s.p.c.attr.SameHost && !s.hasPending() && s.leaving+s.writing == 0
}

// arrived reports whether the peer is known to have taken in all data. It never promises more small
// data than it did at first beyond what it has: see window.
func (s *stream) arrived() bool {
	return s.smallFirst > 0 && s.smallMax >= s.smallOut+s.smallFirst && s.largeMax == s.largeOut
}

// left notes that a frame has left. Over shared memory a call may wait for that: see hasLeft and
// Conn.awaitPosted. To wake one elsewhere would be in vain, and cost more than the frame.
func (s *stream) left() {
	if s.leaving--; s.leaving == 0 && s.p.c.attr.SameHost {
		s.wr.signal()
	}
}

// passes reports whether a Write or CloseWrite is the first in vain since the peer closed. As in
// TCP, where only its answer tells that the peer is gone, that call succeeds, and the next
// one fails.
func (s *stream) passes() bool {
	passes := s.err == nil && s.peerClosed && !s.told && !s.closed()
	s.told = s.told || passes
	return passes
}

// shutError returns why neither direction can be ended: the conn is closed, or has ended in both.
func (s *stream) shutError() error {
	switch {
	case s.closed():
		return errClosed
	case s.err != nil, s.told, s.send != sendOpen && s.recv.ends():
		return syscall.ENOTCONN
	}
	return nil
}

// settled reports whether a stream which the user has closed needs nothing more
// of this process.
func (s *stream) settled() bool {
	return s.gone() || s.send == sendFinAcked || s.send >= sendClosed || s.p.err != nil
}

// writeError returns why nothing more can be written, nil if more can.
func (s *stream) writeError() error {
	switch {
	case s.closed():
		return errClosed
	case s.err != nil:
		return s.err
	case !s.mayData():
		return syscall.EPIPE
	case s.p.err != nil: // the peer is doomed
		return syscall.ECONNRESET
	}
	return nil
}
