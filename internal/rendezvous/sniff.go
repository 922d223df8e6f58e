package rendezvous

import (
	"bytes"
	"errors"
	"io"
	"net"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
)

// Sniff tells a rendezvous from another protocol by a connection's first bytes.
// It reads until they differ from a preamble, at the latest until deadline (zero:
// none), and returns a connection that yields them again. A client that says
// nothing is not told apart: Sniff then fails with the deadline's error, and nc
// stays the caller's to close.
func Sniff(nc net.Conn, deadline time.Time) (isFabric bool, replay net.Conn, err error) {
	if err := nc.SetReadDeadline(deadline); err != nil {
		return false, nil, err
	}
	var buf [framing.PreambleSize]byte
	n := 0
	for n < len(buf) && prefixMatches(buf[:n]) && err == nil {
		var k int
		k, err = nc.Read(buf[n:])
		n += k
	}
	// An early end of the stream is for the server to see, not an error here.
	if err != nil && !errors.Is(err, io.EOF) {
		return false, nil, err
	}
	if err := nc.SetReadDeadline(time.Time{}); err != nil {
		return false, nil, err
	}
	full := n == len(buf) && prefixMatches(buf[:n])
	return full, &replayConn{Conn: nc, prefix: bytes.Clone(buf[:n])}, nil
}

func prefixMatches(b []byte) bool {
	n := min(len(b), len(framing.Magic))
	return string(b[:n]) == framing.Magic[:n]
}

// replayConn yields prefix before what the connection has. Servers that look for
// the methods of a *net.TCPConn find those that matter to them.
type replayConn struct {
	net.Conn
	prefix []byte // read by one goroutine at a time, as the server does at first
}

func (c *replayConn) Read(b []byte) (int, error) {
	if len(c.prefix) == 0 {
		return c.Conn.Read(b)
	}
	n := copy(b, c.prefix)
	c.prefix = c.prefix[n:]
	return n, nil
}

// NetConn is the connection underneath, as in tls.Conn.
func (c *replayConn) NetConn() net.Conn { return c.Conn }

// CloseWrite ends the sending direction where the connection can.
func (c *replayConn) CloseWrite() error {
	if cw, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return c.Close()
}

// WriteTo keeps splice(2) within reach of io.Copy.
func (c *replayConn) WriteTo(w io.Writer) (n int64, err error) {
	if len(c.prefix) > 0 {
		k, err := w.Write(c.prefix)
		n, c.prefix = int64(k), c.prefix[k:]
		if err != nil {
			return n, err
		}
	}
	m, err := io.Copy(w, c.Conn)
	return n + m, err
}

// ReadFrom keeps sendfile(2) within reach of io.Copy.
func (c *replayConn) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(c.Conn, r)
}
