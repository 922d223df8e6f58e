package main

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed202c38ff/fabricnet/cmd/fabricnet/internal/connlimit"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// conn is what the conns of all networks have in common: each direction can be ended separately.
type conn interface {
	net.Conn
	CloseRead() error
	CloseWrite() error
}

var (
	_ conn = (*net.TCPConn)(nil)
	_ conn = (*net.UnixConn)(nil)
	_ conn = (*rdmanet.Conn)(nil)
)

// activity notes when a conn last carried something, in either direction.
type activity struct {
	began time.Time
	last  atomic.Int64 // nanoseconds after began
}

func newActivity() *activity { return &activity{began: time.Now()} }

func (a *activity) touch() { a.last.Store(int64(time.Since(a.began))) }

// watch calls end when nothing was carried for limit, and returns then or when ctx ends.
func (a *activity) watch(ctx context.Context, limit time.Duration, end func()) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		quiet := time.Since(a.began) - time.Duration(a.last.Load())
		if quiet >= limit {
			end()
			return
		}
		timer.Reset(limit - quiet)
	}
}

// pieceSize is how much is copied at a time, in bytes. A longer write to a slow receiver must not
// make the conn look idle.
const pieceSize = 64 << 10

var pieces = sync.Pool{New: func() any { return new([pieceSize]byte) }}

// sink is a conn that notes when something is written to it, and how much.
type sink struct {
	conn
	*activity
	carried *atomic.Uint64
}

func (s sink) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		s.touch()
		var m int
		m, err = s.conn.Write(b[n:min(n+pieceSize, len(b))])
		n += m
		s.carried.Add(uint64(m))
	}
	s.touch()
	return n, err
}

// link is two conns that are copied to each other.
type link struct {
	client, target conn
	first          []byte // what the client has sent already
	active         *activity
	counts         *counters

	sent, received int64 // by the client and to it
}

// join copies in both directions at once, until both have ended or one has failed.
func (l *link) join() error {
	var there, back error
	var copying sync.WaitGroup
	copying.Go(func() {
		there = l.pipe(sink{l.target, l.active, &l.counts.sent}, l.client, l.first, &l.sent)
	})
	back = l.pipe(sink{l.client, l.active, &l.counts.received}, l.target, nil, &l.received)
	copying.Wait()
	return cause(there, back)
}

// cause returns the error of the direction that failed first, which ended the other one, too, by
// closing the conns.
func cause(a, b error) error {
	if a == nil || b != nil && errors.Is(a, net.ErrClosed) {
		return b
	}
	return a
}

// pipe copies one direction and passes on its end.
func (l *link) pipe(dst sink, src conn, first []byte, n *int64) error {
	m, err := dst.Write(first)
	*n = int64(m)
	if err == nil {
		var more int64
		more, err = transfer(dst, src)
		*n += more
	}
	switch {
	case err == nil:
		err = ended(dst.CloseWrite())
	case errors.Is(err, syscall.EPIPE):
		// dst is closed and takes no more. What it sent before may still be on its way to src, so
		// only this direction ends.
		err = ended(src.CloseRead())
	default:
		reset(dst.conn, src)
	}
	return err
}

// transfer does not copy what a fabric has already written into memory: the conn in dst reads it
// once, so that it does not matter if the peer changes it. From other conns transfer hides the
// shortcuts of io.Copy, of which the sink would not be told.
func transfer(dst sink, src conn) (n int64, err error) {
	if c, ok := src.(*rdmanet.Conn); ok {
		return lend(dst, c)
	}
	buf := pieces.Get().(*[pieceSize]byte)
	defer pieces.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, buf[:])
}

func lend(dst sink, src *rdmanet.Conn) (n int64, err error) {
	for {
		b, err := src.RecvBuffer()
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		m, err := dst.Write(b.Bytes())
		b.Release()
		if n += int64(m); err != nil {
			return n, err
		}
	}
}

// ended ignores the error of ending a direction of a conn that has ended already.
func ended(err error) error {
	if errors.Is(err, syscall.ENOTCONN) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// lingerTCP calls SetLinger on conns that are TCP conns.
func lingerTCP(c conn, sec int) {
	if c, ok := c.(*net.TCPConn); ok {
		_ = c.SetLinger(sec)
	}
}

// guard makes the peer get an error if the process ends before the conn does: otherwise the kernel
// would end the stream in good order. Peers over a fabric notice by themselves.
func guard(c conn) { lingerTCP(c, 0) }

// closeBoth closes conns in good order and at the same time: over a fabric Close waits
// until the peer has everything.
func closeBoth(a, b conn) error {
	closing := func(c conn) error {
		lingerTCP(c, -1) // after guard
		return ended(c.Close())
	}
	var errA, errB error
	var both sync.WaitGroup
	both.Go(func() { errA = closing(a) })
	errB = closing(b)
	both.Wait()
	return errors.Join(errA, errB)
}

// reset closes conns as connlimit.Reset does.
func reset(conns ...conn) {
	for _, c := range conns {
		connlimit.Reset(c)
	}
}
