package engine

import (
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/pool"
)

// Conn is the blocking face of a stream, with the semantics of net.Conn. Its
// errors are sentinels: io.EOF, net.ErrClosed, os.ErrDeadlineExceeded,
// syscall.ECONNRESET, EPIPE and ECONNREFUSED. That of a lost peer wraps
// ECONNRESET, and says why. All methods may be called concurrently.
type Conn struct {
	stream *stream
	e      *Endpoint

	rmu sync.Mutex // one Read at a time
	wmu sync.Mutex // one Write at a time: its bytes stay together

	copier pool.Copier // guarded by wmu
	sent   turn        // guarded by wmu

	seen atomic.Pointer[Counters] // by those who only look

	// Guarded by the endpoint's lock.
	rdl, wdl deadline
	left     int  // bytes that a blocked writer still has
	small    bool // the Write that is going on sends frames only
	zeroCopy bool // it is a SendBuffer: it needs no staging memory
	dialed   bool // by this side
	linger   time.Duration
}

var errClosed = net.ErrClosed

// maxLinger is in seconds: what a time.Duration holds.
const maxLinger = int64(math.MaxInt64 / time.Second)

// DefaultLinger is how long Close waits, at most, for the peer to have all.
const DefaultLinger = 5 * time.Second

// Counters is what a conn has moved, in bytes. Small data went in frames, large
// data by RDMA write.
type Counters struct {
	SmallIn, SmallOut, LargeIn, LargeOut uint64
}

// Counters is a snapshot.
func (c *Conn) Counters() Counters {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	return c.stream.info
}

// readError is why nothing can be read, whether or not there is data: closing
// and the deadline come first, as in TCP.
func (c *Conn) readError() error {
	switch {
	case c.stream.closed():
		return errClosed
	case c.rdl.passed:
		return os.ErrDeadlineExceeded
	}
	return nil
}

// endError is why nothing more will come, once all data is read.
func (s *stream) endError() error {
	switch {
	case s.reader.shut(), s.recv == recvEOF:
		return io.EOF
	}
	return s.err
}

// Read reads what is there, and waits if nothing is.
func (c *Conn) Read(b []byte) (int, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	c.e.enter()
	n, err := c.read(b)
	c.e.leave()
	return n, err
}

// read is Read with the lock held, which it gives up to wait and to copy.
func (c *Conn) read(b []byte) (int, error) {
	s, e := c.stream, c.e
	for {
		if len(b) == 0 && !s.closed() { // as TCP: even after the deadline
			return 0, nil
		}
		if err := c.readError(); err != nil {
			return 0, err
		}
		n, large := s.tryRead(b)
		if large != nil {
			s.reader = readerCopies
			s.p.c.copying++
			e.leave()
			n = copy(b, large)
			e.enter()
			if s.p.c.endCopying() {
				s.endCopy(n)
			}
			return n, nil
		}
		if n > 0 {
			return n, nil
		}
		if err := s.endError(); err != nil {
			return 0, err
		}
		s.direct, s.directN = b, 0
		c.waitRead()
		n = s.directN
		s.direct, s.directN = nil, 0
		if n > 0 {
			return n, nil
		}
	}
}

// waitRead waits for something to change for a reader.
func (c *Conn) waitRead() {
	c.stream.unhold()
	c.stream.rd.prepare()
	c.e.leave()
	c.e.wait(&c.stream.rd, "rdmanet.Read")
	c.e.enter()
}

// endCopy ends an unlocked copy of n bytes out of the landing ring.
func (s *stream) endCopy(n int) {
	shut := s.reader == readerShutsCopies
	s.reader = readerFree
	if s.gone() {
		s.release()
		return
	}
	if !s.segs.empty() {
		s.consumeLarge(n)
	}
	s.dropLease()
	if shut {
		s.shutRead()
	}
}

// Write writes all of b: it returns once every byte is sent or copied, and
// waits only for credit.
func (c *Conn) Write(b []byte) (int, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	return c.writeAll(b)
}

// writeAll is Write for who holds wmu.
func (c *Conn) writeAll(b []byte) (int, error) {
	n, s := 0, c.stream
	c.e.enter()
	defer c.endWrite()
	for frames, locked := s.smallOut, s.smallOut; ; locked = c.giveWay(locked) {
		if err := c.writeError(); err != nil {
			return n, err
		}
		if n == len(b) {
			return n, nil
		}
		// What began in frames ends in frames where the ring is small: the next
		// Write may then begin where the ring does, and not be cut in two by its end.
		l := s.outLease
		c.small = l != nil && l.Size <= 2*stepSize && len(b) <= stepSize && s.smallOut != frames && !s.windowFull()
		m, retry := c.write(b[n:])
		if n += m; n == len(b) {
			return n, nil
		}
		if m == 0 && !retry {
			c.waitWrite(len(b) - n)
		}
	}
}

// giveWay gives the lock up for a moment once a writer has copied much with it, since
// the stream's small data was so much.
func (c *Conn) giveWay(since uint64) uint64 {
	if c.stream.smallOut-since < lockedCopy/2 {
		return since
	}
	c.e.leave()
	c.e.enter()
	return c.stream.smallOut
}

// endWrite leaves what this writer did not use to others that wait for it.
func (c *Conn) endWrite() {
	c.small, c.zeroCopy = false, false
	if co := c.e.core; co.blocked > 0 {
		co.freed = true
	}
	c.e.leave()
}

// write moves as much of b as is possible at once. retry asks for another
// attempt although nothing was moved.
func (c *Conn) write(b []byte) (n int, retry bool) {
	s := c.stream
	if c.small {
		return s.writeFrames(b), false
	}
	if s.copies() {
		if n, retry := c.copyIn(b); n > 0 || retry {
			return n, retry
		}
		return s.writeFrames(b), false
	}
	if n := s.fill(b); n > 0 {
		return n, false
	}
	if src := s.prepareLarge(len(b)); src.mem != nil {
		s.p.c.copying++
		c.e.leave()
		c.copier.Copy(src.mem, b)
		c.e.enter()
		if !s.p.c.endCopying() {
			return 0, true
		}
		// Much can have happened meanwhile, but only this call sends.
		if c.writeError() != nil || !s.commitLarge(src, len(b)) {
			s.p.putStage(src.slot)
			return 0, true
		}
		return len(src.mem), false
	}
	return s.writeFrames(b), false
}

// copyIn copies as much of b as is possible at once to a ring that is mapped. retry is as of
// write.
func (c *Conn) copyIn(b []byte) (n int, retry bool) {
	if c.sent.over() { // before anything is taken that others wait for
		c.e.leave()
		runtime.Gosched()
		c.e.enter()
		return 0, true
	}
	w := c.stream.prepareCopy(len(b))
	if w.mem == nil {
		return 0, false
	}
	c.sent += turn(len(w.mem))
	c.e.leave()
	c.copier.Copy(w.mem, b)
	c.e.enter()
	if !c.stream.commitCopy(&w) {
		return 0, true
	}
	return len(w.mem), false
}

// turn counts what a writer has copied to mapped rings since it let other goroutines run. One
// whose reader keeps up would else go on until Go's scheduler stops it, for 10 ms, in which
// the others of the process move nothing.
type turn int

// turnBytes takes some 30 us.
const turnBytes = 1 << 20

// over begins another turn if this one is over.
func (t *turn) over() bool {
	if *t < turnBytes {
		return false
	}
	*t = 0
	return true
}

// waitWrite waits for something to change for a writer with n bytes left.
func (c *Conn) waitWrite(n int) {
	s := c.stream
	if s.writeError() != nil { // posting has found out, before anybody waited to hear it
		return
	}
	c.left = n
	s.wr.prepare()
	s.block()
	c.e.leave()
	c.e.wait(&s.wr, "rdmanet.Write")
	c.e.enter()
	s.wr.waiting = false
	s.woke()
}

func (c *Conn) writeError() error {
	if err := c.stream.writeError(); err != nil {
		return err
	}
	if c.wdl.passed {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// CloseWrite ends the sending direction: the peer reads io.EOF after the last
// byte.
func (c *Conn) CloseWrite() error {
	c.e.enter()
	defer c.e.leave()
	if c.stream.closed() {
		return errClosed
	}
	c.stream.shutWrite(false)
	return nil
}

// CloseRead discards what has arrived and what will: reads return io.EOF.
func (c *Conn) CloseRead() error {
	c.e.enter()
	defer c.e.leave()
	if c.stream.closed() {
		return errClosed
	}
	c.stream.shutRead()
	return nil
}

// SetLinger sets how long Close waits, in seconds: 0 resets the conn and
// discards what is not delivered, negative is the default.
func (c *Conn) SetLinger(sec int) error {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	if c.stream.closed() {
		return errClosed
	}
	switch {
	case sec < 0:
		c.linger = 0
	case sec == 0:
		c.linger = -1
	default:
		c.linger = time.Duration(min(int64(sec), maxLinger)) * time.Second
	}
	return nil
}

// Close ends the conn. It waits, for the linger time at most, until everything
// written is in the peer's memory, so that the process may exit right after. It fails if
// the conn is cut meanwhile, and nobody knows whether it is. After a cut it just closes.
func (c *Conn) Close() error {
	s, e := c.stream, c.e
	e.enterWatched()
	if s.closed() {
		e.leave()
		return errClosed
	}
	limit := c.linger
	if limit == 0 {
		limit = DefaultLinger
	}
	defer e.poller.WatchAfter(limit)() // what is sent here may hang, too
	c.rdl.stop()
	c.wdl.stop()
	defer e.poller.Settle(!c.dialed) // who closes one conn soon opens the next
	if c.linger < 0 {
		s.abort(framing.ResetAbort)
		e.leave()
		e.poller.RescueSoon()
		return nil
	}
	s.close()
	e.leave()
	// Writers and readers have been woken; a writer may still be waiting for
	// its turn to leave, and shares the waiter.
	c.wmu.Lock()
	defer c.wmu.Unlock()
	e.enter()
	defer e.leave()
	if s.settled() {
		return nil
	}
	c.wdl.set(e, &s.wr, time.Now().Add(limit))
	defer c.wdl.stop()
	for !s.settled() {
		if c.wdl.passed {
			return os.ErrDeadlineExceeded
		}
		s.wr.prepare()
		e.leave()
		e.wait(&s.wr, "rdmanet.Close")
		e.enter()
	}
	return s.undelivered()
}

// SetDeadline sets both deadlines; a zero time is none.
func (c *Conn) SetDeadline(t time.Time) error { return c.setDeadlines(t, true, true) }

// SetReadDeadline sets the deadline of pending and later reads.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, true, false) }

// SetWriteDeadline sets the deadline of pending and later writes.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, false, true) }

func (c *Conn) setDeadlines(t time.Time, read, write bool) error {
	c.e.lock()
	defer c.e.mu.Unlock()
	if c.stream.closed() {
		return errClosed
	}
	if read {
		c.rdl.set(c.e, &c.stream.rd, t)
	}
	if write {
		c.wdl.set(c.e, &c.stream.wr, t)
	}
	return nil
}
