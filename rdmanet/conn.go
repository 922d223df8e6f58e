package rdmanet

import (
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/engine"
)

// stream is what a Conn needs of what it runs on: *engine.Conn and *tcpStream.
type stream interface {
	io.ReadWriteCloser
	CloseRead() error
	CloseWrite() error
	SetLinger(sec int) error
	SetDeadline(t time.Time) error
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
}

var (
	_ stream = (*engine.Conn)(nil)
	_ stream = (*tcpStream)(nil)
)

// Conn is a conn over a fabric, or over plain TCP where that was chosen. All
// methods may be called concurrently.
type Conn struct {
	id            uint64 // comes first: reflect.DeepEqual of addresses looks no further
	s             stream
	fabric        *engine.Conn // s, or nil for plain TCP
	link          *link        // nil for plain TCP
	t             *Transport
	opened        time.Time
	dialed        bool  // by this side
	local, remote *Addr // for errors, which must not keep the conn

	localAddr, remoteAddr Addr // the same, for callers: InfoOf finds the conn by them; not for plain TCP

	reused   bool
	fallback error // why it is plain TCP, nil if the client chose it
	closed   atomic.Bool
}

var (
	_ net.Conn      = (*Conn)(nil)
	_ io.ReaderFrom = (*Conn)(nil)
	_ io.WriterTo   = (*Conn)(nil)
)

// lastID is of the process, so that ConnInfo.ID tells conns of different
// Transports apart as well.
var lastID atomic.Uint64

// newConn wraps a conn over the fabric. It is called with the endpoint locked.
func newConn(l *link, c *engine.Conn, reused bool) *Conn {
	l.t.conns.Add(1)
	conn := &Conn{
		s: c, fabric: c, link: l, t: l.t, local: l.local, remote: l.remote, id: lastID.Add(1), reused: reused,
		opened: time.Now(), dialed: l.listener == nil,
	}
	conn.localAddr, conn.remoteAddr = l.local.of(conn), l.remote.of(conn)
	l.t.register(conn)
	return conn
}

// err puts every error into its final form.
func (c *Conn) err(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return opError(op, c.local, c.remote, err)
}

// Read reads what is there, and waits if nothing is. At the end of the stream
// it returns io.EOF.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.s.Read(b)
	return n, c.err("read", err)
}

// Write writes all of b. It returns once b may be used again, which does not mean
// that the peer has the bytes, and waits only for credit from the peer. The bytes
// of one Write stay together.
func (c *Conn) Write(b []byte) (int, error) {
	n, err := c.s.Write(b)
	return n, c.err("write", err)
}

// Close closes the conn. Unless SetLinger says otherwise, it waits for up to 5
// seconds until the peer has all that was written. It fails with
// os.ErrDeadlineExceeded if the peer does not, and with ECONNRESET if the peer is lost
// meanwhile, but not if this Transport is closed. A conn that was reset before just closes,
// as on TCP.
func (c *Conn) Close() error {
	err := c.s.Close()
	if c.closed.CompareAndSwap(false, true) {
		c.t.forgetConn(c)
		if c.link != nil {
			c.t.conns.Add(-1)
			c.link.unused()
		}
	}
	return c.err("close", err)
}

// abort closes the conn without delivering anything.
func (c *Conn) abort() {
	_ = c.s.SetLinger(0)
	_ = c.Close()
}

// CloseRead discards what has arrived and what will: Read returns io.EOF.
func (c *Conn) CloseRead() error { return c.err("close", c.s.CloseRead()) }

// CloseWrite ends the sending direction: the peer reads io.EOF after the last
// byte.
func (c *Conn) CloseWrite() error { return c.err("close", c.s.CloseWrite()) }

// LocalAddr is the control connection's local address, a *Addr, by which InfoOf finds the
// conn; on plain TCP it is a *net.TCPAddr. It stays valid.
func (c *Conn) LocalAddr() net.Addr {
	if tcp, ok := c.s.(*tcpStream); ok {
		return tcp.LocalAddr()
	}
	return &c.localAddr
}

// RemoteAddr is the control connection's remote address, a *Addr, by which InfoOf finds the
// conn; on plain TCP it is a *net.TCPAddr. It stays valid. Conns that share a
// control connection have the same.
func (c *Conn) RemoteAddr() net.Addr {
	if tcp, ok := c.s.(*tcpStream); ok {
		return tcp.RemoteAddr()
	}
	return &c.remoteAddr
}

// SetDeadline sets both deadlines; a zero time is none.
func (c *Conn) SetDeadline(t time.Time) error { return c.err("set", c.s.SetDeadline(t)) }

// SetReadDeadline sets the deadline of pending and later reads.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.err("set", c.s.SetReadDeadline(t)) }

// SetWriteDeadline sets the deadline of pending and later writes. A Write that it
// ends reports how many bytes are on their way.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.err("set", c.s.SetWriteDeadline(t)) }

// SetLinger sets how long Close waits for the peer to have all that was written,
// in seconds. 0 resets the conn and discards what is not delivered; a negative
// number restores the default of 5.
func (c *Conn) SetLinger(sec int) error { return c.err("set", c.s.SetLinger(sec)) }

// The options that follow have an effect on plain TCP only: a fabric does not
// delay small writes, the control connection watches over the peer, and Transport bounds
// the memory.

// SetNoDelay controls Nagle's algorithm on plain TCP; on a fabric it does nothing.
func (c *Conn) SetNoDelay(on bool) error {
	return c.option(func(tc *net.TCPConn) error { return tc.SetNoDelay(on) })
}

// SetKeepAlive is for plain TCP; on a fabric it does nothing.
func (c *Conn) SetKeepAlive(on bool) error {
	return c.option(func(tc *net.TCPConn) error { return tc.SetKeepAlive(on) })
}

// SetKeepAlivePeriod is for plain TCP; on a fabric it does nothing.
func (c *Conn) SetKeepAlivePeriod(d time.Duration) error {
	return c.option(func(tc *net.TCPConn) error { return tc.SetKeepAlivePeriod(d) })
}

// SetKeepAliveConfig is for plain TCP; on a fabric it does nothing.
func (c *Conn) SetKeepAliveConfig(cfg net.KeepAliveConfig) error {
	return c.option(func(tc *net.TCPConn) error { return tc.SetKeepAliveConfig(cfg) })
}

// SetReadBuffer is for plain TCP; on a fabric it does nothing.
func (c *Conn) SetReadBuffer(bytes int) error {
	return c.option(func(tc *net.TCPConn) error { return tc.SetReadBuffer(bytes) })
}

// SetWriteBuffer is for plain TCP; on a fabric it does nothing.
func (c *Conn) SetWriteBuffer(bytes int) error {
	return c.option(func(tc *net.TCPConn) error { return tc.SetWriteBuffer(bytes) })
}

func (c *Conn) option(set func(*net.TCPConn) error) error {
	switch s := c.s.(type) {
	case *tcpStream:
		return c.err("set", set(s.TCPConn))
	default:
		if c.closed.Load() {
			return c.err("set", net.ErrClosed)
		}
	}
	return nil
}

// tcpStream is a plain TCP connection whose first bytes may have been looked at.
type tcpStream struct {
	*net.TCPConn
	r        io.Reader   // yields them again
	readOver atomic.Bool // CloseRead was called
}

func (s *tcpStream) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if n > 0 && s.readOver.Load() { // it had arrived before
		return 0, io.EOF
	}
	return n, err
}

// CloseRead is the system's, which alone would still let what has arrived be read.
func (s *tcpStream) CloseRead() error {
	err := s.TCPConn.CloseRead()
	if err == nil {
		s.readOver.Store(true)
	}
	return err
}

// WriteTo keeps splice(2) within reach.
func (s *tcpStream) WriteTo(w io.Writer) (int64, error) {
	if s.readOver.Load() {
		return io.Copy(w, struct{ io.Reader }{s})
	}
	return io.Copy(w, s.r)
}

// newTCPConn wraps nc, which is read through r.
func newTCPConn(t *Transport, nc net.Conn, r io.Reader, fallback error) *Conn {
	c := &Conn{
		s: &tcpStream{TCPConn: nc.(*net.TCPConn), r: r}, t: t, id: lastID.Add(1), fallback: fallback,
		local: newAddr("tcp", nc.LocalAddr()), remote: newAddr("tcp", nc.RemoteAddr()),
		opened: time.Now(), dialed: fallback != nil,
	}
	t.register(c)
	return c
}
