package engine

import (
	"container/list"
	"errors"
	"syscall"
	"time"
)

// stream is one conn's state. Positions are absolute: bytes since the start
// of the stream, small and large together.
type stream struct {
	p    *peer
	id   uint32
	at   int   // index in p.list, or removed
	conn *Conn // the blocking interface to this stream
	info Counters

	closedAt   time.Time // when our user closed it, zero if it is open
	peerClosed bool      // the peer takes nothing more
	told       bool      // and our user was told, or has ended its direction before
	err        error     // why nothing more can be received, except that the stream ended
	port       uint16    // of the dialing side; 0 until the listening side has said it
	checks     bool      // it is a path check's, and no conn's
	stats      *Stats    // what it moves is counted there

	sending
	receiving

	// What the peer was last told of our credits.
	advertisedWindow, advertisedRing uint64
	dirty                            bool // the peer should be told more: listed in peer.dirty
}

// sending is the outgoing half of a stream.
type sending struct {
	send       sendState
	wr         waiter
	sndNxt     uint64  // position of the next byte
	smallOut   uint64  // bytes of small data sent
	smallMax   uint64  // bytes of small data that the peer has promised memory for
	smallFirst uint64  // of these, those that it had promised when it was first heard
	full       pending // precedes pend
	pend       pending
	queued     bool   // listed in peer.pending
	largeOut   uint64 // bytes of large data sent
	largeMax   uint64 // of these, released by the peer
	grant      grantState
	offer      *outLease // a lease that waits for its memory to be mapped here, or for grantReplacing to end
	outLease   *outLease // while the ring is held or on its way back
	writing    int       // RDMA writes in flight, and copies to a mapped ring
	leaving    int       // frames of data, and the Fin, that are queued or, unless they were injected, in flight
	writer     writerState
	turn       uint64 // one more than sndNxt was when wakeWriters last woke it; 0 before
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
	copying bool   // the reader copies from the landing ring, without the lock
	shut    bool   // CloseRead: what arrives is dropped
	direct  []byte // the rest of a waiting reader's buffer
	directN int    // bytes put there
}

// opening reports whether nothing has come yet from the peer's listener that says that it has
// taken the stream. A Fin may overtake the Accept, and implies it if the peer has closed.
func (s *stream) opening() bool { return s.conn.dialed && s.port == 0 && !s.peerClosed && !s.closed() }

// unanswered reports whether the listener's answer to our Open is still to come. A Fin or Reset of
// a stream that was taken may overtake the Accept, but the Accept has the port.
func (s *stream) unanswered() bool {
	return s.port == 0 && s.p.err == nil && (s.err == nil || errors.Is(s.err, syscall.ECONNRESET))
}

// closed reports whether our user has closed the stream, or it was removed.
func (s *stream) closed() bool { return !s.closedAt.IsZero() || s.gone() }

// removed is the place in p.list of a stream that was removed from the peer.
const removed = -1

func (s *stream) gone() bool { return s.at == removed }

// quiet reports whether the peer writes nothing more and has nothing in flight.
func (s *stream) quiet() bool { return s.recv == recvCut || s.send >= sendClosed }

// mayData reports whether the user may still send data.
func (s *stream) mayData() bool { return s.send == sendOpen && !s.peerClosed && !s.closed() }

// newStream makes a stream and reserves the memory that its window promises. checks says that it is for a
// path check.
func (p *peer) newStream(id uint32, checks bool) (*stream, error) {
	budget := p.c.cfg.Budget
	win := p.c.cfg.Window
	// The last quarter of the budget is for smaller windows, the last sixteenth for still
	// smaller ones, and so on: some is to be left for landing rings, which carry more.
	b := budget.Stats()
	for share := b.Limit / 4; b.Limit-b.Used-int64(win) < share && win/4 >= MinWindow; share /= 4 {
		win /= 4
	}
	s := &stream{p: p, id: id, at: len(p.list), checks: checks, stats: &p.c.stats}
	for s.heap = p.c.heap(win); !s.join(); s.heap = p.c.heap(win) {
		if win /= 4; win < MinWindow {
			p.c.stats.Stalls.Memory++
			return nil, ErrMemory
		}
	}
	s.promised, s.rd, s.wr = uint64(win), newWaiter(), newWaiter()
	if checks {
		s.stats = new(Stats) // users count the bytes of their conns
	}
	s.conn = &Conn{stream: s, e: p.c.owner}
	p.streams[id] = s
	p.list = append(p.list, s)
	if !checks {
		p.conns.Add(1)
		p.c.stats.Conns++
	}
	return s, nil
}

// discarding reports whether nothing that still arrives will be read.
func (s *stream) discarding() bool { return s.closed() || s.err != nil }

// tryRead copies what is there of the next bytes into b, lockedCopy bytes at most.
// If it returns large, it has copied nothing: the caller is to copy from large, which
// is memory of the landing ring, without the lock, and then to call endCopy.
func (s *stream) tryRead(b []byte) (n int, large []byte) {
	b = b[:min(len(b), lockedCopy)]
	for n < len(b) && !s.segs.empty() {
		seg := s.segs.front()
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
				s.discard() // or reads would find it for ever
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
	if s.peerClosed {
		end = evRefused
	}
	if why := s.p.err; !s.closed() {
		s.conn.lost.Store(&why)
	}
	s.cut(err, end)
	s.finAckDue, s.writing = false, 0
	s.dropNext()
	if s.closed() || s.checks {
		s.remove()
	}
}

// cut ends both directions from outside: on a Reset, or when the stream is lost.
func (s *stream) cut(err error, end sendEvent) {
	if s.err == nil && s.recv != recvEOF {
		s.err = err
	}
	s.peerCloses()
	s.send.move(end)
	if s.recv != recvEOF {
		s.recv = recvCut
	}
	s.dropHeld()
}

// peerCloses takes in that the peer takes nothing more.
func (s *stream) peerCloses() {
	s.peerClosed = true
	if s.send != sendOpen { // nothing more will be tried
		s.passes()
	}
	s.dropPending()
	s.endMapped()
	s.rd.signal()
	s.wr.signal()
}

// remove takes the stream out of its peer and gives its memory back.
func (s *stream) remove() {
	p, closed := s.p, s.closed()
	if s.gone() {
		return
	}
	if closed {
		p.c.lingering--
	}
	delete(p.streams, s.id)
	last := len(p.list) - 1
	p.list[s.at], p.list[last].at = p.list[last], s.at
	p.list[last] = nil
	p.list, s.at = p.list[:last], removed
	if !s.checks {
		p.idle.Store(p.c.now().UnixNano())
		p.conns.Add(-1)
		if closed {
			p.closed.Add(-1) // after conns: see Idle
		}
		p.c.stats.Conns--
	}
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
	if s.checks {
		p.checkStream = nil
		p.keepCheckRing()
	} else if p.conns.Load() == 0 && p.cfg.Idle != nil {
		p.cfg.Idle()
	}
	p.checkGone()
}

// release frees the landing ring of a stream that is gone, once no reader copies from it and
// the user holds no piece of it.
func (s *stream) release() {
	if !s.gone() || s.copying || s.inLease == nil || len(s.lent) > 0 {
		return
	}
	for _, l := range []*inLease{s.oldLease, s.inLease, s.nextLease} {
		if l != nil {
			s.p.c.leases.drop(l)
		}
	}
	s.oldLease, s.nextLease = nil, nil
	s.leaseOver()
}

// segments is the queue of what can be read, in stream order.
type segments struct{ q fifo[segment] }

type segment struct {
	n     int
	large bool // it is in the landing ring, else in the reassembly rings
}

func (q *segments) empty() bool { return q.q.len() == 0 }

// front returns the segment that is next. There must be one.
func (q *segments) front() *segment { return q.q.first() }

func (q *segments) push(large bool, n int) {
	if !q.empty() {
		if last := q.q.last(); last.large == large {
			last.n += n
			return
		}
	}
	q.q.push(segment{n, large})
}

// pop takes n bytes off the front segment.
func (q *segments) pop(n int) {
	s := q.q.first()
	if s.n -= n; s.n <= 0 {
		q.q.pop()
	}
}
