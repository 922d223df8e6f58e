package engine

import (
	"math"
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

	// Sending.
	wr       waiter
	sndNxt   uint64         // position of the next byte
	smallOut uint64         // bytes of small data sent
	smallMax framing.Cursor // bytes of small data that the peer has promised memory for
	pend     pending
	largeOut uint64         // bytes of large data sent
	largeMax framing.Cursor // of these, read by the peer
	outLease *outLease
	asked    bool   // for a lease
	recalled bool   // it was revoked before it came
	askData  bool   // by the next data frame
	writing  int    // RDMA writes in flight
	blocked  bool   // a writer waits; listed in peer.blocked
	awake    bool   // it was woken from there, and is not back yet
	turn     uint64 // one more than sndNxt when it was woken last; 0 before

	// Receiving.
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
	wanting   bool // the peer asked for a lease that is not granted yet
	queued    bool // in core.waiting
	held      []heldFrame
	direct    []byte // rest of a waiting reader's buffer
	directN   int    // bytes put there
	reading   bool   // a reader copies from the landing ring, unlocked

	// What the peer was last told of our credits.
	toldWindow, toldRing uint64
	dirty                bool

	// Opening and closing.
	opening   bool
	finSent   bool // our Fin is queued or sent
	finClosed bool // with FlagClosed
	acked     bool // our last Fin was answered
	finKnown  bool // the peer's Fin is here
	finPos    uint64
	eof       bool              // and everything before it
	remote    bool              // the peer has closed: it takes nothing more
	quiet     bool              // the peer has promised to write nothing more
	wasCut    bool              // by a Reset
	due       framing.ResetCode // the Reset that is to be sent when no write is in flight
	closedAt  time.Time
	owed      bool // a FinAck is due
	readShut  bool // CloseRead
	closed    bool // Close
	gone      bool // removed from the peer
	err       error
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
	s := &stream{p: p, id: id, win: win, heap: p.c.heap(win), rd: newWaiter(), wr: newWaiter()}
	s.conn = &Conn{stream: s, e: p.c.owner}
	s.at = len(p.list)
	p.streams[id] = s
	p.list = append(p.list, s)
	p.conns.Add(1)
	p.c.stats.Streams++
	return s, nil
}

// window is how many bytes of small data the peer may have sent.
func (s *stream) window() uint64 { return s.smallRead + uint64(s.win) }

// credits takes in what a frame says of our own sending.
func (s *stream) credits(window, ring uint64) {
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

// tell notes that a frame which is being built carries the stream's credits.
func (s *stream) tell() (window, ring uint64) {
	s.toldWindow, s.toldRing = s.window(), s.largeRel
	if l := s.inLease; l != nil {
		l.told = l.unread.read
	}
	return s.toldWindow, s.toldRing
}

// deaf reports that nothing that arrives will be read.
func (s *stream) deaf() bool { return s.closed || s.err != nil }

// readSmall notes that n bytes of small data were consumed.
func (s *stream) readSmall(n int) {
	s.smallRead += uint64(n)
	if s.window()-s.toldWindow >= uint64(s.win)/2 {
		s.markDirty()
	}
}

// markDirty has the peer told of the stream's credits soon.
func (s *stream) markDirty() {
	if !s.dirty && !s.gone && s.p.err == nil && !s.eof {
		s.dirty = true
		s.p.dirty = append(s.p.dirty, s)
		s.p.c.touch(s.p)
	}
}

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
	s.opening = false
	if s.err == nil && !s.eof {
		s.err = err
	}
	s.acked, s.remote, s.quiet, s.owed = true, true, true, false
	s.writing = 0
	s.dropHeld()
	s.rd.signal()
	s.wr.signal()
	s.dropPending()
	if s.closed {
		s.remove()
	}
}

// remove takes the stream out of its peer and gives its memory back.
func (s *stream) remove() {
	if s.gone {
		return
	}
	s.gone = true
	p := s.p
	if s.closed {
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
	s.outLease = nil
	s.dropPending()
	s.dropHeld()
	p.c.touch(p)
	s.rd.signal()
	s.wr.signal()
	s.segs = segments{}
	s.freeRing()
	p.c.leave(s.heap)
	s.release()
	p.checkGone()
}

// release frees the landing ring once no reader is copying from it.
func (s *stream) release() {
	if !s.gone || s.reading {
		return
	}
	if l := s.inLease; l != nil && len(l.lent) == 0 {
		s.inLease = nil
		s.p.c.leases.ForceDrop(l.Lease)
		s.p.c.ringFreed = true
		s.p.trim()
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
