package engine

import (
	"container/list"
	"errors"
	"syscall"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
)

// stream is one conn's state. Positions are absolute: bytes since the start
// of the stream, small and large together.
type stream struct {
	p    *peer
	id   uint32
	at   int   // index in p.list
	conn *Conn // the blocking interface to this stream
	info Counters

	closing  closeState
	closedAt time.Time // when our user closed it
	err      error     // why nothing more can be received, except that the stream ended
	port     uint16    // of the dialing side; 0 until the listening side has said it

	sending
	receiving
	advertisedCredits
}

// sending is the outgoing half of a stream.
type sending struct {
	send       sendState
	wr         waiter
	sndNxt     uint64         // position of the next byte
	smallOut   uint64         // bytes of small data sent
	smallMax   framing.Cursor // bytes of small data that the peer has promised memory for
	smallFirst uint64         // of these, those that it had promised when it was first heard
	full       pending        // precedes pend
	pend       pending
	queued     bool           // listed in peer.pending
	largeOut   uint64         // bytes of large data sent
	largeMax   framing.Cursor // of these, released by the peer
	grant      grantState
	offer      *outLease // a lease that waits for its memory to be mapped here, or for grantReplacing to end
	outLease   *outLease // while the ring is held or on its way back
	writing    int       // RDMA writes in flight, and copies to a mapped ring
	leaving    int       // frames of data, and the Fin, that are queued or, unless they were injected, in flight
	writer     writerState
	turn       uint64            // one more than sndNxt was when wakeWriters last woke it; 0 before
	due        framing.ResetCode // code of the Reset that is due, while aborting
}

// receiving is the incoming half.
type receiving struct {
	recv      recvState
	finPos    uint64 // where the stream ends, once that is known
	finAckDue bool   // the peer's Fin or Reset is still to be answered
	rd        waiter
	rcvNxt    uint64 // position before which everything has arrived
	segs      segments
	smallIn   uint64 // bytes of small data received
	smallRead uint64 // of these, consumed
	window
	largeIn   uint64 // bytes of large data received
	largeRead uint64 // of these, consumed
	largeRel  uint64 // of these, released
	inLeases
	claim   claimState
	claimAt *list.Element // in peer.claims, if the claim is open
	held    []heldFrame
	gap     gap
	reader  readerState
	direct  []byte // the rest of a waiting reader's buffer
	directN int    // bytes put there
}

// advertisedCredits is what the peer was last told of our credits.
type advertisedCredits struct {
	advertisedWindow, advertisedRing uint64
	dirty                            bool // the peer should be told more: listed in peer.dirty
}

// opening reports whether nothing has come yet from the peer's listener that says that it has
// taken the stream.
func (s *stream) opening() bool { return s.closing == connOpening }

// unanswered reports whether the listener's answer to our Open is still to come. A Fin or Reset of
// a stream that was taken may overtake the Accept, but the Accept has the port.
func (s *stream) unanswered() bool {
	return s.port == 0 && s.p.err == nil && (s.err == nil || errors.Is(s.err, syscall.ECONNRESET))
}

// closed reports whether our user has closed the stream.
func (s *stream) closed() bool { return s.closing >= connClosed }

// gone reports whether the stream was removed from the peer.
func (s *stream) gone() bool { return s.closing == connRemoved }

// peerClosed reports whether the peer takes nothing more.
func (s *stream) peerClosed() bool {
	return s.closing == connPeerClosed || s.closing == connBroken || s.closing == connBothClosed
}

// quiet reports whether the peer writes nothing more and has nothing in flight.
func (s *stream) quiet() bool { return s.recv == recvCut || s.send >= sendClosed }

// mayData reports whether the user may still send data.
func (s *stream) mayData() bool {
	return s.send == sendOpen && (s.closing == connOpen || s.closing == connOpening)
}

// newStream makes a stream and reserves the memory that its window promises.
func (p *peer) newStream(id uint32) (*stream, error) {
	budget := p.c.cfg.Budget
	win := p.c.cfg.Window
	// The last quarter of the budget is for smaller windows, the last sixteenth for still
	// smaller ones, and so on: some is to be left for landing rings, which carry more.
	b := budget.Stats()
	for share := b.Limit / 4; b.Limit-b.Used-int64(win) < share && win/4 >= minWindow; share /= 4 {
		win /= 4
	}
	s := &stream{p: p, id: id, closing: connOpen}
	for s.heap = p.c.heap(win); !s.join(); s.heap = p.c.heap(win) {
		if win /= 4; win < minWindow {
			p.c.stats.Stalls.Memory++
			return nil, ErrMemory
		}
	}
	s.promised, s.rd, s.wr = uint64(win), newWaiter(), newWaiter()
	s.conn = &Conn{stream: s, e: p.c.owner}
	s.at = len(p.list)
	p.streams[id] = s
	p.list = append(p.list, s)
	p.conns.Add(1)
	p.c.stats.Conns++
	return s, nil
}

// discarding reports whether nothing that still arrives will be read.
func (s *stream) discarding() bool { return s.closed() || s.err != nil }

// tryRead copies what is there of the next bytes into b, lockedCopy bytes at most.
// If it returns large, it has copied nothing: the caller is to copy from large, which
// is memory of the landing ring, without the lock, and then to call endCopy.
func (s *stream) tryRead(b []byte) (n int, large []byte) {
	b = b[:min(len(b), lockedCopy)]
	for n < len(b) {
		seg := s.segs.front()
		if seg == nil {
			break
		}
		want := min(len(b)-n, seg.n)
		if seg.large {
			l := s.slice(want)
			if len(l) >= unlockedCopy {
				if n == 0 {
					return 0, l
				}
				break
			}
			want = copy(b[n:], l)
			s.consumeLarge(want)
		} else {
			m, err := s.unring(b[n:][:want])
			if err != nil { // cannot be: the segments say that the data is there
				s.fail(err)
				break
			}
			want = m
			s.segs.pop(want)
			s.readSmall(want)
		}
		n += want
	}
	return n, nil
}

// unlockedCopy is the size from which it is worth releasing the lock for a copy, in bytes.
const unlockedCopy = 4 << 10

// lockedCopy is how many bytes are copied at most before others get the lock.
const lockedCopy = 64 << 10

// fail ends a stream for its user. What has arrived in order can still be read. After
// that comes io.EOF if the peer had finished and everything had arrived, else err.
func (s *stream) fail(err error) {
	end := evLost
	if s.peerClosed() {
		end = evRefused
	}
	if why := s.p.err; !s.closed() {
		s.conn.lost.Store(&why)
	}
	s.cut(err, end)
	s.finAckDue, s.writing = false, 0
	s.dropNext()
	s.dropHeld()
	s.rd.signal()
	s.wr.signal()
	s.dropPending()
	if s.closed() {
		s.remove()
	}
}

// cut ends both directions from outside: on a Reset, or when the stream is lost.
func (s *stream) cut(err error, end sendEvent) {
	if s.err == nil && s.recv != recvEOF {
		s.err = err
	}
	s.peerCloses()
	sendMoves.move(&s.send, end)
	recvMoves.move(&s.recv, evCut)
}

// peerCloses takes in that the peer takes nothing more. It reports false if that was known.
func (s *stream) peerCloses() bool {
	news := closeMoves.move(&s.closing, evPeerClosed)
	if s.send != sendOpen { // nothing more will be tried
		s.passes()
	}
	return news
}

// remove takes the stream out of its peer and gives its memory back.
func (s *stream) remove() {
	p, closed := s.p, s.closed()
	if !closeMoves.move(&s.closing, evRemoved) {
		return
	}
	if closed {
		p.c.lingering--
	}
	delete(p.streams, s.id)
	last := len(p.list) - 1
	p.list[s.at], p.list[last].at = p.list[last], s.at
	p.list[last] = nil
	p.list = p.list[:last]
	p.idle.Store(p.c.now().UnixNano())
	p.conns.Add(-1)
	if closed {
		p.closed.Add(-1) // after conns: see Idle
	}
	p.c.stats.Conns--
	if gone := s.conn.gone; gone != nil {
		gone()
	}
	s.dropGrant()
	s.dropPending()
	s.dropHeld()
	s.dropClaim()
	p.c.touch(p)
	s.rd.signal()
	s.wr.signal()
	s.segs = segments{}
	s.freeRings()
	s.leave(0)
	if s.inLease != nil {
		s.leaseEnds() // the user may still hold pieces of it
	}
	s.release()
	if len(p.streams) == 0 && p.cfg.Idle != nil {
		p.cfg.Idle()
	}
	p.checkGone()
}

// release frees the landing ring of a stream that is gone, once no reader copies from it and
// the user holds no piece of it.
func (s *stream) release() {
	if !s.gone() || s.reader.copies() {
		return
	}
	if s.inLease != nil && len(s.lent) == 0 {
		for _, l := range []*inLease{s.oldLease, s.inLease, s.nextLease} {
			if l != nil {
				s.p.c.leases.ForceDrop(l.Lease)
			}
		}
		s.oldLease, s.nextLease = nil, nil
		s.leaseOver()
	}
}

// segments is the queue of what can be read, in stream order.
type segments struct {
	q    []segment
	head int
}

type segment struct {
	n     int
	large bool // it is in the landing ring, else in the reassembly rings
}

func (q *segments) empty() bool { return q.head == len(q.q) }

func (q *segments) front() *segment {
	if q.empty() {
		return nil
	}
	return &q.q[q.head]
}

func (q *segments) push(large bool, n int) {
	if !q.empty() {
		if last := &q.q[len(q.q)-1]; last.large == large {
			last.n += n
			return
		}
	}
	q.q = append(q.q, segment{n, large})
}

// pop takes n bytes off the front segment.
func (q *segments) pop(n int) {
	s := &q.q[q.head]
	if s.n -= n; s.n > 0 {
		return
	}
	if q.head++; q.head == len(q.q) {
		q.q, q.head = q.q[:0], 0
	} else if q.head > 64 {
		q.q, q.head = q.q[:copy(q.q, q.q[q.head:])], 0
	}
}
