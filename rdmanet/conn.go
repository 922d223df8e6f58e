package rdmanet

import (
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/engine"
)

// stream is what a Conn needs of what it runs on: an *engine.Conn or a *tcpStream.
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

// Conn is a conn over a fabric, or over plain TCP where that was chosen. Dials and
// Listener.Accept return it as a net.Conn. All methods may be called concurrently.
type Conn struct {
	id            uint64 // comes first: reflect.DeepEqual of addresses looks no further
	s             stream
	fabric        *engine.Conn // s, or nil for plain TCP
	link          *link        // nil for plain TCP
	t             *Transport
	opened        time.Time
	dialed        bool  // by this side
	local, remote *Addr // for errors, which must not keep the conn alive

	localAddr, remoteAddr Addr // the same, for callers: InfoOf finds the conn by them. Unset for plain TCP

	reused   bool
	fallback error // why it is plain TCP; nil if the client chose that
	closed   atomic.Bool
}

var (
	_ net.Conn      = (*Conn)(nil)
	_ io.ReaderFrom = (*Conn)(nil)
	_ io.WriterTo   = (*Conn)(nil)
)

// lastID is shared by the whole process, so that ConnInfo.ID also tells conns of different
// Transports apart.
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

// Read reads what has arrived, up to len(b) bytes, and waits if nothing has. At the end of
// the stream it returns io.EOF. It fails with os.ErrDeadlineExceeded after the read deadline,
// with net.ErrClosed after Close, and with ECONNRESET if the conn was reset or its peer lost.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.s.Read(b)
	return n, c.err("read", err)
}

// Write writes all of b. It returns once b may be used again, which does not mean that the
// peer has the bytes. It waits only for credit from the peer and for this side's resources
// for sending: see Stalls. The bytes of one Write stay together. It fails as Read does,
// but for io.EOF, and with EPIPE after CloseWrite or if the peer has closed the conn.
func (c *Conn) Write(b []byte) (int, error) {
	n, err := c.s.Write(b)
	return n, c.err("write", err)
}

// Close closes the conn. Over a fabric it waits until the peer has all that was written, for
// up to 5 seconds unless SetLinger says otherwise. It fails with os.ErrDeadlineExceeded if
// that takes longer, and with ECONNRESET if the peer is lost meanwhile, but not if this
// Transport is closed. A conn that was reset before just closes, as on TCP. Further calls
// fail with net.ErrClosed.
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

// CloseRead discards what has arrived and what will arrive: Read returns io.EOF.
func (c *Conn) CloseRead() error { return c.err("close", c.s.CloseRead()) }

// CloseWrite ends the sending direction: after the last byte, the peer reads io.EOF.
func (c *Conn) CloseWrite() error { return c.err("close", c.s.CloseWrite()) }

// LocalAddr returns the local address of the control connection, a *Addr, by which InfoOf
// finds the conn. On plain TCP it is a *net.TCPAddr. It stays valid after Close.
func (c *Conn) LocalAddr() net.Addr {
	if tcp, ok := c.s.(*tcpStream); ok {
		return tcp.LocalAddr()
	}
	return &c.localAddr
}

// RemoteAddr returns the remote address of the control connection, a *Addr, by which InfoOf
// finds the conn. On plain TCP it is a *net.TCPAddr. It stays valid after Close. Conns that
// share a control connection have the same address.
func (c *Conn) RemoteAddr() net.Addr {
	if tcp, ok := c.s.(*tcpStream); ok {
		return tcp.RemoteAddr()
	}
	return &c.remoteAddr
}

// SetDeadline sets the read and the write deadline; the zero time means none.
func (c *Conn) SetDeadline(t time.Time) error { return c.err("set", c.s.SetDeadline(t)) }

// SetReadDeadline sets the deadline of pending and later reads; the zero time means none.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.err("set", c.s.SetReadDeadline(t)) }

// SetWriteDeadline sets the deadline of pending and later writes; the zero time means none.
// A Write that the deadline ends returns how many bytes are on their way.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.err("set", c.s.SetWriteDeadline(t)) }

// SetLinger sets how long Close waits, in seconds, until the peer has all that was written.
// With 0, Close resets the conn and discards what is not delivered. A negative number
// restores the default of 5. On plain TCP it is the SetLinger of *net.TCPConn.
func (c *Conn) SetLinger(sec int) error { return c.err("set", c.s.SetLinger(sec)) }

// The options that follow affect plain TCP only: a fabric does not delay small writes, the
// control connection watches over the peer, and the Transport bounds the memory.

// SetNoDelay turns Nagle's algorithm off or on, on plain TCP. On a fabric it does nothing.
func (c *Conn) SetNoDelay(on bool) error {
	return c.option(func(tc *net.TCPConn) error { return tc.SetNoDelay(on) })
}

// SetKeepAlive turns keep-alive probes on or off, on plain TCP. On a fabric it does nothing.
func (c *Conn) SetKeepAlive(on bool) error {
	return c.option(func(tc *net.TCPConn) error { return tc.SetKeepAlive(on) })
}

// SetKeepAlivePeriod sets the time between keep-alive probes, on plain TCP. On a fabric it
// does nothing.
func (c *Conn) SetKeepAlivePeriod(d time.Duration) error {
	return c.option(func(tc *net.TCPConn) error { return tc.SetKeepAlivePeriod(d) })
}

// SetKeepAliveConfig configures keep-alive probes, on plain TCP. On a fabric it does nothing.
func (c *Conn) SetKeepAliveConfig(cfg net.KeepAliveConfig) error {
	return c.option(func(tc *net.TCPConn) error { return tc.SetKeepAliveConfig(cfg) })
}

// SetReadBuffer sets the size of the socket's receive buffer, on plain TCP. On a fabric it
// does nothing.
func (c *Conn) SetReadBuffer(bytes int) error {
	return c.option(func(tc *net.TCPConn) error { return tc.SetReadBuffer(bytes) })
}

// SetWriteBuffer sets the size of the socket's send buffer, on plain TCP. On a fabric it does
// nothing.
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

// tcpStream is a plain TCP connection whose first bytes may have been read already.
type tcpStream struct {
	*net.TCPConn
	r        io.Reader   // yields them again, and then the rest
	readOver atomic.Bool // CloseRead was called
}

func (s *tcpStream) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if n > 0 && s.readOver.Load() { // it had arrived before CloseRead
		return 0, io.EOF
	}
	return n, err
}

// CloseRead also notes that it was called: shutdown(2) alone would still let what has arrived
// be read.
func (s *tcpStream) CloseRead() error {
	err := s.TCPConn.CloseRead()
	if err == nil {
		s.readOver.Store(true)
	}
	return err
}

// WriteTo lets io.Copy use splice(2).
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
