package bootstrap

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
)

// Sniff tells a control connection from another protocol by the connection's first bytes.
// It reads until they differ from a preamble or are all there, or until deadline (zero:
// none), and returns a connection that yields them again. A client that sends
// nothing cannot be told apart: Sniff then fails with the deadline's error. If Sniff fails,
// the caller still has to close nc.
func Sniff(nc net.Conn, deadline time.Time) (isFabric bool, replay net.Conn, err error) {
	if err := nc.SetReadDeadline(deadline); err != nil {
		return false, nil, err
	}
	var buf [framing.PreambleSize]byte
	n, err := readWhilePreamble(nc, buf[:])
	// An early end of the stream is no error here: the server will see it.
	if err != nil && !errors.Is(err, io.EOF) {
		return false, nil, err
	}
	if err := nc.SetReadDeadline(time.Time{}); err != nil {
		return false, nil, err
	}
	full := n == len(buf) && prefixMatches(buf[:n])
	return full, newReplayConn(nc, buf[:n]), nil
}

// readWhilePreamble fills buf, but stops at bytes which no preamble has: what sends them may well
// wait for an answer before it sends more.
func readWhilePreamble(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && prefixMatches(buf[:n]) && err == nil {
		var k int
		k, err = r.Read(buf[n:])
		n += k
	}
	if n == len(buf) {
		return n, nil
	}
	return n, err
}

func prefixMatches(b []byte) bool {
	n := min(len(b), len(framing.Magic))
	return string(b[:n]) == framing.Magic[:n]
}

// replayConn yields prefix before what the connection has, by the rules of net.Conn: Close
// and deadlines have their effect on a Read of these bytes, too. Servers that look
// for the methods of a *net.TCPConn find those that matter to them.
type replayConn struct {
	net.Conn
	raw syscall.RawConn // observes Close and deadlines; nil if the connection has none, as in tests

	over   atomic.Bool // prefix has been read
	mu     sync.Mutex  // guards prefix
	prefix []byte
}

func newReplayConn(nc net.Conn, prefix []byte) *replayConn {
	c := &replayConn{Conn: nc, prefix: bytes.Clone(prefix)}
	c.over.Store(len(prefix) == 0)
	if sc, ok := nc.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			c.raw = raw
		}
	}
	return c
}

func (c *replayConn) Read(b []byte) (int, error) {
	if c.over.Load() || len(b) == 0 {
		return c.Conn.Read(b)
	}
	if n, err := c.replay(b); n > 0 || err != nil {
		return n, err
	}
	return c.Conn.Read(b) // another Read got the last of prefix
}

// replay reads from prefix only. It does so within a Read of the raw connection, of which
// there is one at a time, and which first checks whether the connection is closed and its
// deadline has passed.
func (c *replayConn) replay(b []byte) (n int, err error) {
	take := func(uintptr) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		n = copy(b, c.prefix)
		c.prefix = c.prefix[n:]
		c.over.Store(len(c.prefix) == 0)
		return true
	}
	if c.raw == nil {
		take(0)
		return n, nil
	}
	err = c.raw.Read(take)
	var oe *net.OpError
	if errors.As(err, &oe) { // its Op is "raw-read"
		err = &net.OpError{Op: "read", Net: oe.Net, Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: oe.Err}
	}
	return n, err
}

// NetConn returns the connection underneath, as in tls.Conn.
func (c *replayConn) NetConn() net.Conn { return c.Conn }

// CloseWrite ends the sending direction if the connection can do that, and otherwise closes the
// connection.
func (c *replayConn) CloseWrite() error {
	if cw, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return c.Close()
}

// WriteTo lets io.Copy still use splice(2).
func (c *replayConn) WriteTo(w io.Writer) (int64, error) {
	var buf [framing.PreambleSize]byte
	var written int
	if !c.over.Load() {
		n, err := c.replay(buf[:])
		if n > 0 {
			written, err = w.Write(buf[:n])
		}
		if err == nil && written < n {
			err = io.ErrShortWrite
		}
		if err != nil {
			return int64(written), err
		}
	}
	n, err := io.Copy(w, c.Conn)
	return int64(written) + n, err
}

// ReadFrom lets io.Copy still use sendfile(2).
func (c *replayConn) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(c.Conn, r)
}
