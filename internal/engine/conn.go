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

// Conn is the blocking interface to a stream, with the semantics of net.Conn. Its
// errors are sentinels: io.EOF, net.ErrClosed, os.ErrDeadlineExceeded,
// syscall.ECONNRESET, EPIPE and ECONNREFUSED. The error for a lost peer wraps
// ECONNRESET and says why. All methods may be called concurrently.
type Conn struct {
	stream *stream
	e      *Endpoint

	rmu sync.Mutex // one Read at a time
	wmu sync.Mutex // one Write at a time: its bytes stay together

	copier pool.Copier // guarded by wmu
	sent   turn        // guarded by wmu

	seen atomic.Pointer[Counters] // the last snapshot, for observers that find the lock taken: see observe.go

	// Guarded by the endpoint's lock.
	rdl, wdl deadline
	left     int  // bytes that a blocked writer has yet to write
	small    bool // the current Write sends frames only
	zeroCopy bool // the current Write is a SendBuffer, which needs no staging memory
	dialed   bool // this side opened the conn
	linger   time.Duration
}

var errClosed = net.ErrClosed

// maxLinger is the longest linger time that fits a time.Duration, in seconds.
const maxLinger = int64(math.MaxInt64 / time.Second)

// DefaultLinger is how long Close waits, at most, for everything written to reach the peer.
const DefaultLinger = 5 * time.Second

// Counters is what a conn has moved, in bytes. Small data went in frames, large
// data by RDMA write or by a copy to a mapped ring.
type Counters struct {
	SmallIn, SmallOut, LargeIn, LargeOut uint64
}

// Counters returns a snapshot of the conn's counters.
func (c *Conn) Counters() Counters {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	return c.stream.info
}

// readError returns why nothing may be read even if there is data: as in TCP, closing and
// the deadline come first. It returns nil if reading may go on.
func (c *Conn) readError() error {
	switch {
	case c.stream.closed():
		return errClosed
	case c.rdl.passed:
		return os.ErrDeadlineExceeded
	}
	return nil
}

// endError returns why no more data will come, nil if more may. It is for when all data that
// has arrived is read.
func (s *stream) endError() error {
	switch {
	case s.reader.shut(), s.recv == recvEOF:
		return io.EOF
	}
	return s.err
}

// Read reads what is there, and waits if there is nothing.
func (c *Conn) Read(b []byte) (int, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	c.e.enter()
	n, err := c.read(b)
	c.e.leave()
	return n, err
}

// read is Read with the endpoint's lock held. It releases the lock to wait, and to copy out of
// the landing ring.
func (c *Conn) read(b []byte) (int, error) {
	s, e := c.stream, c.e
	for {
		if len(b) == 0 && !s.closed() { // like TCP, even after the deadline
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

// waitRead blocks a reader until something has changed for it.
func (c *Conn) waitRead() {
	c.stream.unhold()
	c.stream.rd.prepare()
	c.e.leave()
	c.e.wait(&c.stream.rd, "rdmanet.Read")
	c.e.enter()
}

// endCopy finishes a copy of n bytes that was made out of the landing ring without the lock.
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

// Write writes all of b. It returns once every byte is sent or copied: it waits for credit,
// and for room in what the endpoint's conns share, but not for delivery.
func (c *Conn) Write(b []byte) (int, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	return c.writeAll(b)
}

// writeAll is Write for a caller that holds wmu.
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
		// If the ring is small, a Write that began in frames ends in frames. The next Write
		// can then begin where the ring begins, and is not cut in two by its end.
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

// giveWay releases the lock for a moment if a writer has copied much under it since smallOut
// was since. It returns what smallOut was when the lock was last released.
func (c *Conn) giveWay(since uint64) uint64 {
	if c.stream.smallOut-since < lockedCopy/2 {
		return since
	}
	c.e.leave()
	c.e.enter()
	return c.stream.smallOut
}

// endWrite lets waiting writers have what this one did not use.
func (c *Conn) endWrite() {
	c.small, c.zeroCopy = false, false
	if co := c.e.core; co.blocked > 0 {
		co.freed = true
	}
	c.e.leave()
}

// write moves as much of b as it can without waiting. retry asks for another
// attempt even though nothing was moved.
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
		// Much may have changed meanwhile, but only this call sends on the stream: it holds wmu.
		if c.writeError() != nil || !s.commitLarge(src, len(b)) {
			s.p.putStage(src.slot)
			return 0, true
		}
		return len(src.mem), false
	}
	return s.writeFrames(b), false
}

// copyIn copies as much of b as it can without waiting to a mapped ring. retry is as in write.
func (c *Conn) copyIn(b []byte) (n int, retry bool) {
	if c.sent.over() { // before taking anything that others wait for
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

// turn counts the bytes that a writer has copied to mapped rings since it last let other
// goroutines run. A writer whose reader keeps up would otherwise go on for 10 ms, until Go's
// scheduler stops it, and the process's other goroutines would move nothing meanwhile.
type turn int

// turnBytes is how long a turn is. Copying that much takes some 30 us.
const turnBytes = 1 << 20

// over reports whether the turn is over, and begins another one if so.
func (t *turn) over() bool {
	if *t < turnBytes {
		return false
	}
	*t = 0
	return true
}

// waitWrite blocks a writer with n bytes left until something has changed for it.
func (c *Conn) waitWrite(n int) {
	s := c.stream
	if s.writeError() != nil { // posting has found out, and its signal found nobody waiting
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

// CloseRead discards what has arrived and what is still to come: reads return io.EOF.
func (c *Conn) CloseRead() error {
	c.e.enter()
	defer c.e.leave()
	if c.stream.closed() {
		return errClosed
	}
	c.stream.shutRead()
	return nil
}

// SetLinger sets how long Close waits, in seconds. With 0, Close resets the conn and
// discards what is not delivered; a negative value stands for the default.
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

// Close ends the conn. It waits, for the linger time at most, until everything written is
// in the peer's memory, so that the process may exit right after. If the conn is cut
// meanwhile, Close fails, since nobody knows whether everything has arrived. If the conn was
// cut before, Close just closes it.
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
	defer e.poller.WatchAfter(limit)() // what Close sends may hang, too
	c.rdl.stop()
	c.wdl.stop()
	defer e.poller.Settle(!c.dialed) // a client that closes one conn soon opens the next
	if c.linger < 0 {
		s.abort(framing.ResetAbort)
		e.leave()
		e.poller.RescueSoon()
		return nil
	}
	s.close()
	e.leave()
	// Writers and readers have been woken, but a writer may not have left yet, and it shares
	// the waiter.
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

// SetDeadline sets both deadlines; a zero time means none.
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
