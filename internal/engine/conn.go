package engine

import (
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/pool"
)

// Conn is the blocking interface to a stream, with the semantics of net.Conn. Its
// errors are sentinels: io.EOF, net.ErrClosed, os.ErrDeadlineExceeded,
// syscall.ECONNRESET, EPIPE and ECONNREFUSED. The error for a lost peer is
// ECONNRESET; Lost says why. All methods may be called concurrently.
type Conn struct {
	stream *stream
	e      *Endpoint

	rmu sync.Mutex // one Read at a time
	wmu sync.Mutex // one Write at a time: its bytes stay together

	copier pool.Copier // guarded by wmu
	sent   int         // bytes copied to mapped rings in this turn; guarded by wmu

	lost atomic.Pointer[error]
	seen atomic.Pointer[Counters] // the last snapshot, for observers that find the lock taken: see observe.go

	// Guarded by the endpoint's lock.
	rdl, wdl deadline
	left     int  // bytes that a blocked writer has yet to write
	small    bool // the current Write sends frames only
	zeroCopy bool // the current Write is a SendBuffer, which needs no staging memory
	dialed   bool // this side opened the conn
	gone     func()
	linger   time.Duration
}

// Port returns the dialing side's port, by which a listener tells its conns apart. It may be
// called once Open has returned the conn.
func (c *Conn) Port() uint16 { return c.stream.port }

// Lost returns why the peer was lost while the conn was open, nil if it was not.
func (c *Conn) Lost() error {
	if err := c.lost.Load(); err != nil {
		return *err
	}
	return nil
}

// OnGone has f called, with the endpoint locked, when the conn is gone: when neither side can have
// anything in flight. It is for PeerConfig.Accept.
func (c *Conn) OnGone(f func()) { c.gone = f }

var errClosed = net.ErrClosed

// Counters is what a conn has moved, in bytes. Small data went in frames, large
// data by RDMA write or by a copy to a mapped ring.
type Counters struct {
	SmallIn, SmallOut, LargeIn, LargeOut uint64
}

// readError returns why nothing can be read, nil if there is something or more may come. As in TCP,
// closing and the deadline come before what has arrived, and that comes before the end.
func (c *Conn) readError() error {
	s := c.stream
	switch {
	case s.closed():
		return errClosed
	case c.rdl.passed:
		return os.ErrDeadlineExceeded
	case !s.segs.empty():
		return nil
	case s.shut, s.recv == recvEOF:
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
	if len(b) == 0 && !s.closed() { // like TCP, even after the deadline
		return 0, nil
	}
	s.direct, s.directN = b, 0
	err := c.awaitRead()
	n := s.directN
	s.direct, s.directN = nil, 0
	if n > 0 {
		return n, nil
	}
	if err != nil {
		return 0, err
	}
	n, large := s.tryRead(b)
	if large != nil {
		s.copying = true
		s.p.c.copying++
		e.leave()
		n = copy(b, large)
		e.enter()
		if s.p.c.endCopying() {
			s.endCopy(n)
		}
	}
	return n, nil
}

// AwaitRead waits until Read need not wait, so that a caller can wait without a buffer.
func (c *Conn) AwaitRead() {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	c.e.enter()
	defer c.e.leave()
	_ = c.awaitRead() // Read returns it
}

// awaitRead waits until there is something to read, or has been put into s.direct, or returns why there
// is not. The caller holds the endpoint's lock.
func (c *Conn) awaitRead() error {
	for s := c.stream; ; c.waitRead() {
		if err := c.readError(); err != nil || !s.segs.empty() || s.directN > 0 {
			return err
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
	s.copying = false
	if s.gone() {
		s.release()
		return
	}
	if !s.segs.empty() {
		s.consumeLarge(n)
	}
	s.dropLease()
	if s.shut {
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
	if c.passes(len(b)) {
		return len(b), nil
	}
	for frames, locked := s.smallOut, s.smallOut; ; locked = c.giveWay(locked) {
		if err := c.writeError(); err != nil {
			return n, err
		}
		if n == len(b) {
			return n, c.awaitPosted()
		}
		// If the ring is small, a Write that began in frames ends in frames. The next Write
		// can then begin where the ring begins, and is not cut in two by its end.
		l := s.outLease
		c.small = l != nil && l.Size <= 2*stepSize && len(b) <= stepSize && s.smallOut != frames && !s.windowFull()
		m, retry := c.write(b[n:])
		if n += m; n == len(b) {
			return n, c.awaitPosted()
		}
		if m == 0 && !retry {
			c.waitWrite(len(b) - n)
		}
	}
}

// passes reports whether a Write of n bytes is dropped: see stream.passes.
func (c *Conn) passes(n int) bool { return n > 0 && !c.wdl.passed && c.stream.passes() }

// awaitPosted waits, over shared memory, until all frames of data are posted: then they are in
// memory that outlives this process. The fabric refuses them rarely.
func (c *Conn) awaitPosted() error {
	s := c.stream
	for c.e.attr.SameHost && s.leaving > 0 {
		if err := c.writeError(); err != nil {
			return err
		}
		c.left = 0
		c.waitToLeave("rdmanet.Write")
		s.woke() // it may still have stood in line
	}
	return nil
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
	if c.sent >= turnBytes { // before taking anything that others wait for
		c.sent = 0
		c.e.leave()
		runtime.Gosched()
		c.e.enter()
		return 0, true
	}
	w := c.stream.prepareCopy(len(b))
	if w.mem == nil {
		return 0, false
	}
	c.sent += len(w.mem)
	c.e.leave()
	c.copier.Copy(w.mem, b)
	c.e.enter()
	if !c.stream.commitCopy(&w) {
		return 0, true
	}
	return len(w.mem), false
}

// turnBytes is how many bytes a writer copies to mapped rings before it lets other goroutines run. A
// writer whose reader keeps up would otherwise go on for 10 ms, until Go's scheduler stops it, and the
// process's other goroutines would move nothing meanwhile. Copying that much takes some 30 us.
const turnBytes = 1 << 20

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

// writeError returns why nothing more can be written: as in TCP, the deadline comes before
// everything but Close.
func (c *Conn) writeError() error {
	if c.wdl.passed && !c.stream.closed() {
		return os.ErrDeadlineExceeded
	}
	return c.stream.writeError()
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
