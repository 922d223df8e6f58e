package engine

import (
	"container/list"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
)

// stream is one conn's state. Positions are absolute: bytes since the start
// of the stream, small and large together.
type stream struct {
	p    *peer
	id   uint32
	at   int   // in p.list
	conn *Conn // the blocking face of this stream
	info Counters

	closing  closeState
	closedAt time.Time // by our user
	err      error     // why nothing more can be received, but for the end

	sending
	receiving
	advertisedCredits
}

// sending is the half of a stream that goes out.
type sending struct {
	send     sendState
	wr       waiter
	sndNxt   uint64         // position of the next byte
	smallOut uint64         // bytes of small data sent
	smallMax framing.Cursor // bytes of small data that the peer has promised memory for
	pend     pending
	queued   bool           // listed in peer.pending
	largeOut uint64         // bytes of large data sent
	largeMax framing.Cursor // of these, read by the peer
	grant    grantState
	offer    *framing.Lease // that waits for its memory to be mapped here
	outLease *outLease      // while it is held or goes back
	writing  int            // RDMA writes in flight, and copies to a mapped ring
	writer   writerState
	turn     uint64            // one more than sndNxt when it was woken last; 0 before
	due      framing.ResetCode // of the Reset, while aborting
}

// receiving is the half that comes in.
type receiving struct {
	recv      recvState
	finPos    uint64 // where the stream ends, once that is known
	finAckDue bool   // the peer's Fin, or Reset, is to be answered
	rd        waiter
	rcvNxt    uint64 // everything before it has arrived
	segs      segments
	win       int    // bytes of small data promised memory for
	smallIn   uint64 // bytes of small data received
	smallRead uint64 // of these, consumed
	heap      *heap  // has paid for that
	ring      *ring  // nil while it is empty
	largeIn   uint64 // bytes of large data received
	largeRel  uint64 // of these, consumed and released
	inLease   *inLease
	claim     claimState
	claimAt   *list.Element // in peer.claims, if it is open
	held      []heldFrame
	reader    readerState
	direct    []byte // rest of a waiting reader's buffer
	directN   int    // bytes put there
}

// advertisedCredits is what the peer has last heard of our credits.
type advertisedCredits struct {
	advertisedWindow, advertisedRing uint64
	dirty                            bool // it should hear more: listed in peer.dirty
}

// opening reports that the peer's listener has not answered.
func (s *stream) opening() bool { return s.closing == connOpening }

// closed reports that our user has closed the stream.
func (s *stream) closed() bool { return s.closing >= connClosed }

// gone reports that the stream was removed from the peer.
func (s *stream) gone() bool { return s.closing == connRemoved }

// peerClosed reports that the peer takes nothing more.
func (s *stream) peerClosed() bool { return s.closing == connPeerClosed || s.closing == connBothClosed }

// quiet reports that the peer writes nothing more, and has nothing in flight.
func (s *stream) quiet() bool { return s.recv == recvCut || s.send >= sendClosed }

// mayData reports that the user may still send data.
func (s *stream) mayData() bool {
	return s.send == sendOpen && (s.closing == connOpen || s.closing == connOpening)
}

// newStream makes a stream and reserves the memory its window promises.
func (p *peer) newStream(id uint32) (*stream, error) {
	budget := p.c.cfg.Budget
	win := p.c.cfg.Window
	// The last quarter of the budget is for smaller windows, and so on: there is to
	// be some left for landing rings, which carry more.
	b := budget.Stats()
	for share := b.Limit / 4; b.Limit-b.Used-int64(win) < share && win/4 >= minWindow; share /= 4 {
		win /= 4
	}
	for p.c.heap(win).join(budget) != nil {
		if win /= 4; win < minWindow {
			p.c.stats.Stalls.Memory++
			return nil, ErrMemory
		}
	}
	s := &stream{p: p, id: id, closing: connOpen}
	s.win, s.heap, s.rd, s.wr = win, p.c.heap(win), newWaiter(), newWaiter()
	s.conn = &Conn{stream: s, e: p.c.owner}
	s.at = len(p.list)
	p.streams[id] = s
	p.list = append(p.list, s)
	p.conns.Add(1)
	p.c.stats.Streams++
	return s, nil
}

// discarding reports that nothing that arrives will be read.
func (s *stream) discarding() bool { return s.closed() || s.err != nil }

// tryRead copies the next bytes into b as far as they are there. large, if it
// is not empty, is memory of the landing ring that the caller is to copy from
// instead, unlocked, and then to call endCopy. n is at most lockedCopy.
func (s *stream) tryRead(b []byte) (n int, large []byte) {
	b = b[:min(len(b), lockedCopy)]
	for n < len(b) {
		seg := s.segs.front()
		if seg == nil {
			break
		}
		want := min(len(b)-n, seg.n)
		if seg.large {
			l := s.inLease.slice(want)
			if len(l) >= unlockedCopy {
				if n == 0 {
					return 0, l
				}
				break
			}
			want = copy(b[n:], l)
			s.consumeLarge(want)
		} else {
			m, err := s.ring.TryRead(b[n:][:want])
			if err != nil { // cannot be: the segments say that it is there
				s.fail(err)
				break
			}
			want = m
			s.segs.pop(want)
			if s.ring.IsEmpty() {
				s.freeRing()
			}
			s.readSmall(want)
		}
		n += want
	}
	return n, nil
}

// unlockedCopy is the size from which a copy is worth releasing the lock for.
const unlockedCopy = 4 << 10

// lockedCopy is how much is copied at most before others get the lock.
const lockedCopy = 64 << 10

// fail ends a stream for its user: what has been received completely can still
// be read if the peer had finished.
func (s *stream) fail(err error) {
	end := evLost
	if s.peerClosed() {
		end = evRefused
	}
	s.cut(err, end)
	s.finAckDue, s.writing = false, 0
	s.dropHeld()
	s.rd.signal()
	s.wr.signal()
	s.dropPending()
	if s.closed() {
		s.remove()
	}
}

// cut ends both directions from outside.
func (s *stream) cut(err error, end sendEvent) {
	if s.err == nil && s.recv != recvEOF {
		s.err = err
	}
	sendMoves.move(&s.send, end)
	recvMoves.move(&s.recv, evCut)
	closeMoves.move(&s.closing, evPeerClosed)
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
	p.c.stats.Streams--
	s.dropGrant()
	s.dropPending()
	s.dropHeld()
	s.dropClaim()
	p.c.touch(p)
	s.rd.signal()
	s.wr.signal()
	s.segs = segments{}
	s.freeRing()
	p.c.leave(s.heap)
	if s.inLease != nil {
		s.leaseEnds() // the user may hold pieces of it yet
	}
	s.release()
	p.checkGone()
}

// release frees the landing ring once no reader is copying from it.
func (s *stream) release() {
	if !s.gone() || s.reader.copies() {
		return
	}
	if l := s.inLease; l != nil && len(l.lent) == 0 {
		s.p.c.leases.ForceDrop(l.Lease)
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
	large bool // in the landing ring, else in the reassembly ring
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
