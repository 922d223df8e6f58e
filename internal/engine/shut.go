package engine

import (
	"errors"
	"math"
	"os"
	"syscall"
	"time"
)

// How a Conn is closed: what waits, and for what. closing.go has the stream's part.

// maxLinger is the longest linger time that fits a time.Duration, in seconds.
const maxLinger = int64(math.MaxInt64 / time.Second)

// CloseWrite ends the sending direction: the peer reads io.EOF after the last byte. Like Close,
// it waits until everything has left this process.
func (c *Conn) CloseWrite() error {
	s, e := c.stream, c.e
	e.lock()
	if err := s.shutError(); err != nil {
		e.leave()
		return err
	}
	w := c.beginEnding()
	s.shutWrite(false)
	s.passes()
	e.leave()
	c.awaitLeft(w)
	return nil
}

// CloseRead discards what has arrived and what is still to come: reads return io.EOF.
func (c *Conn) CloseRead() error {
	c.e.lock()
	if err := c.stream.shutError(); err != nil {
		c.e.leave()
		return err
	}
	w := c.beginEnding()
	c.stream.shutRead()
	c.e.leave()
	c.endEnding(w)
	return nil
}

// SetLinger sets what Close does. With 0, it resets the conn and discards what is not delivered.
// With more, it waits that many seconds at most until the peer has everything. A negative value
// stands for the default.
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

// Close ends the conn. By default it waits until everything written has left this process, so
// that the process may exit right after, but not for a peer that takes nothing. If SetLinger has
// set a time, Close waits that long at most until everything is in the peer's memory. Then it
// fails if the time is over, or if the conn is cut meanwhile and nobody knows whether everything
// has arrived. If the conn was cut before, Close just closes it.
func (c *Conn) Close() error {
	s, e := c.stream, c.e
	e.lock()
	if s.closed() {
		e.leave()
		return errClosed
	}
	w := c.beginEnding()
	c.rdl.stop()
	c.wdl.stop()
	defer e.poller.Settle(!c.dialed) // a client that closes one conn soon opens the next
	if c.linger < 0 {
		s.abort()
		e.leave()
		c.endEnding(w)
		return nil
	}
	s.close()
	e.leave()
	if c.linger == 0 {
		c.awaitLeft(w)
		return nil
	}
	return c.awaitDelivery(w, c.linger)
}

// ending is a call that ends a direction of a stream: how many ticks it has taken, and for how many
// of them the peer has given no sign of life since the one that was seen last.
type ending struct {
	stream       *stream
	ticks, quiet int
	seen         uint64
}

const (
	// leaveTime is how long a close waits for a peer that gives nothing back.
	leaveTime = 100 * time.Millisecond
	// hushTime is how long it waits if the peer is known to have all data.
	hushTime = 10 * time.Millisecond
	// leaveLimit bounds the wait for a peer that gives things back.
	leaveLimit = 5 * time.Second
	// leaveTick is the time between looks at the calls that end something.
	leaveTick = 5 * time.Millisecond
)

// beginEnding begins a call that ends something, until endEnding. It must be over soon even if what
// it sends hangs in the library. The caller has the lock.
func (c *Conn) beginEnding() *ending {
	w := &ending{stream: c.stream, seen: c.stream.p.signs}
	c.e.endings[w] = struct{}{}
	c.e.tick()
	return w
}

func (c *Conn) endEnding(w *ending) {
	c.e.lock()
	defer c.e.mu.Unlock()
	delete(c.e.endings, w)
}

// tick makes sure that there is a timer for the calls that end something. They have one in common,
// which ends one tick after them: to set one for each would wake a processor that sleeps, which
// costs more than the rest of Close.
func (e *Endpoint) tick() {
	if e.pause != nil { // the model test has no timers
		return
	}
	now := time.Now()
	// A timer that was set in a bubble of testing/synctest may never end: there it is another time.
	if since := now.Sub(e.ticksAt); 0 <= since && since < time.Second {
		return
	}
	e.ticksAt = now
	time.AfterFunc(leaveTick, func() {
		e.expire(func() {
			e.ticksAt = time.Time{}
			for w := range e.endings {
				if w.tick(); w.over() { // to wake all each time would be too much for thousands
					w.stream.wr.signal()
				}
			}
			if len(e.endings) > 0 {
				e.tick()
			}
		})
	})
}

// tick looks at the peer.
func (w *ending) tick() {
	p := w.stream.p
	w.ticks++
	if w.quiet++; w.seen != p.signs {
		w.seen, w.quiet = p.signs, 0
	}
	switch {
	case w.quiet >= int(leaveTime/leaveTick):
		p.stillSince = p.signs
	case w.quiet >= int(hushTime/leaveTick) && w.stream.arrived():
		p.hushSince = p.signs
	}
}

// over reports whether the call has waited enough.
func (w *ending) over() bool {
	p := w.stream.p
	still := p.stillSince == p.signs || p.hushSince == p.signs && w.stream.arrived()
	return still || w.ticks >= int(leaveLimit/leaveTick)
}

// awaitLeft waits until this process is not needed any more for what was written, and for the
// end. It does not wait for a peer that has given nothing back for leaveTime, nor again until the
// peer gives something back: a program may have many conns to it. If the peer is known to have all
// data, only the end may be lost, and hushTime is enough: some libraries close idle conns one by
// one under a lock. And it waits for leaveLimit at most, since a hostile peer may give back ever so
// little.
func (c *Conn) awaitLeft(w *ending) {
	c.wmu.Lock() // writers have been woken, but one may not have left yet, and it shares the waiter
	defer c.wmu.Unlock()
	c.e.enter()
	defer c.e.leave()
	defer delete(c.e.endings, w)
	for !c.stream.hasLeft() && !w.over() {
		c.waitToLeave("rdmanet.Close")
	}
}

// awaitDelivery waits until everything is in the peer's memory.
func (c *Conn) awaitDelivery(w *ending, limit time.Duration) error {
	s, e := c.stream, c.e
	c.wmu.Lock() // as in awaitLeft
	defer c.wmu.Unlock()
	e.enter()
	defer e.leave()
	delete(e.endings, w)
	if s.settled() {
		return nil
	}
	c.wdl.set(e, &s.wr, time.Now().Add(limit))
	defer c.wdl.stop()
	for !s.settled() {
		if c.wdl.passed {
			return os.ErrDeadlineExceeded
		}
		c.waitToLeave("rdmanet.Close")
	}
	if s.send == sendCut && s.sndNxt > 0 && !errors.Is(s.p.err, ErrEndpointClosed) { // else our own user has ended all
		return syscall.ECONNRESET // the peer may lack something
	}
	return nil
}

// waitToLeave blocks a call that waits for what it has sent, or for the end, until something has
// changed for it. what is as in Endpoint.wait.
func (c *Conn) waitToLeave(what string) {
	c.stream.wr.prepare()
	c.e.leave()
	c.e.wait(&c.stream.wr, what)
	c.e.enter()
	c.stream.wr.waiting = false
}
