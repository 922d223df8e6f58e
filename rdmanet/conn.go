package rdmanet

import (
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/engine"
)

// Conn is a conn over a fabric. Dials and Listener.Accept return it as a net.Conn; conns that use
// plain TCP are of type *net.TCPConn. All methods may be called concurrently. A Conn that becomes
// garbage without Close is closed, counted in TransportStats, and reported to the Logger.
type Conn struct {
	in   *conn
	drop runtime.Cleanup // calls in.dropped
}

var (
	_ net.Conn      = (*Conn)(nil)
	_ io.ReaderFrom = (*Conn)(nil)
	_ io.WriterTo   = (*Conn)(nil)
)

// conn is what a Transport holds of a Conn: all of it, apart from what tells that the user has
// dropped the Conn. Methods of Conn that use it keep the Conn alive until they return.
type conn struct {
	*record
	fabric        *engine.Conn
	listener      *net.TCPAddr // the listening side's address
	port          uint16       // the dialing side's
	described     sync.Once
	local, remote *net.TCPAddr // see addrs
	closed        atomic.Bool
}

// newConn makes a conn over the fabric: see conn for listener and port.
func newConn(l *link, c *engine.Conn, listener *net.TCPAddr, port uint16, reused bool) *conn {
	in := &conn{
		record: &record{id: lastID.Add(1), opened: time.Now(), dialed: !l.accepted(), reused: reused, fabric: c, link: l},
		fabric: c, listener: listener, port: port,
	}
	l.t.register(in)
	return in
}

// addrs returns the conn's own addresses, by which InfoOf finds the conn from now on. Many conns are
// never asked.
func (c *conn) addrs() (local, remote *net.TCPAddr) {
	c.described.Do(func() {
		if c.dialed {
			c.local, c.remote = withPort(c.link.local, c.port), newAddr(c.listener)
		} else {
			c.local, c.remote = newAddr(c.listener), withPort(c.link.remote, c.port)
		}
		describe(c.record, c.local, c.remote)
	})
	return c.local, c.remote
}

// handOut returns the conn for the user, once.
func (c *conn) handOut() *Conn {
	out := &Conn{in: c}
	out.drop = runtime.AddCleanup(out, (*conn).dropped, c)
	return out
}

// err puts every error into its final form.
func (c *conn) err(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	local, remote := c.addrs()
	return opError(op, local, remote, err)
}

func (c *conn) close() error {
	err := c.fabric.Close()
	if c.closed.CompareAndSwap(false, true) {
		c.link.t.forgetConn(c)
	}
	return c.err("close", err)
}

// abort closes the conn without delivering anything.
func (c *conn) abort() {
	_ = c.fabric.SetLinger(0)
	_ = c.close()
}

// Read reads what has arrived, up to len(b) bytes, and waits if nothing has. At the end of
// the stream it returns io.EOF. It fails with os.ErrDeadlineExceeded after the read deadline,
// with net.ErrClosed after Close, and with ECONNRESET if the conn was reset or its peer lost.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.in.fabric.Read(b)
	err = c.in.err("read", err)
	runtime.KeepAlive(c)
	return n, err
}

// Write writes all of b. It returns once b may be used again, which does not mean that the
// peer has the bytes; but over shared memory they outlive this process. It waits only for
// credit from the peer and for this side's resources for sending: see Stalls. The bytes of one
// Write stay together. It fails as Read does, but for io.EOF, and with EPIPE after CloseWrite. If
// the peer has closed the conn, the first Write succeeds, as on TCP, and further ones fail with
// EPIPE.
func (c *Conn) Write(b []byte) (int, error) {
	n, err := c.in.fabric.Write(b)
	err = c.in.err("write", err)
	runtime.KeepAlive(c)
	return n, err
}

// Close closes the conn. What was written is delivered even if the process exits right after, as
// long as the peer lives: over shared memory Close need not wait for that, elsewhere it waits
// until the peer has it. It waits neither for the peer's program to read nor, for longer than 0.1
// seconds, for a peer that gives no sign of life: delivery then goes on in the background. See also
// SetLinger. A conn that was reset before just closes, as on TCP. Further calls fail with
// net.ErrClosed.
func (c *Conn) Close() error {
	err := c.in.close()
	c.drop.Stop() // what is left for the garbage collector to do takes it three times as long
	runtime.KeepAlive(c)
	return err
}

// CloseRead discards what has arrived and what will arrive: Read returns io.EOF. It fails with
// ENOTCONN if both directions have ended.
func (c *Conn) CloseRead() error {
	err := c.in.err("close", inCall("shutdown", c.in.fabric.CloseRead()))
	runtime.KeepAlive(c)
	return err
}

// CloseWrite ends the sending direction: after the last byte, the peer reads io.EOF. It waits as
// Close does, so that the process may exit right after. It fails with ENOTCONN if both directions
// have ended.
func (c *Conn) CloseWrite() error {
	err := c.in.err("close", inCall("shutdown", c.in.fabric.CloseWrite()))
	runtime.KeepAlive(c)
	return err
}

// LocalAddr returns the conn's local address, a *net.TCPAddr, by which InfoOf finds the conn: the
// local address of the control connection, but on the dialing side with a port that the listening
// side has chosen. It stays valid after Close and must not be changed.
func (c *Conn) LocalAddr() net.Addr {
	local, _ := c.in.addrs()
	return local
}

// RemoteAddr returns the conn's remote address, a *net.TCPAddr, by which InfoOf finds the conn: the
// remote address of the control connection, but on the listening side with a port that is the
// conn's own among those over a fabric from this host. It stays valid after Close and must not be
// changed.
func (c *Conn) RemoteAddr() net.Addr {
	_, remote := c.in.addrs()
	return remote
}

// SetDeadline sets the read and the write deadline; the zero time means none.
func (c *Conn) SetDeadline(t time.Time) error { return c.setTimed(c.in.fabric.SetDeadline, t) }

// SetReadDeadline sets the deadline of pending and later reads; the zero time means none.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setTimed(c.in.fabric.SetReadDeadline, t) }

// SetWriteDeadline sets the deadline of pending and later writes; the zero time means none.
// A Write that the deadline ends returns how many bytes are on their way.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	return c.setTimed(c.in.fabric.SetWriteDeadline, t)
}

// SetLinger sets what Close does. With a positive number, Close waits that many seconds at most
// until the peer has all that was written; it fails with os.ErrDeadlineExceeded if that takes longer,
// and with ECONNRESET if the peer is lost meanwhile, but not if this Transport is closed. With 0,
// Close resets the conn and discards what is not delivered. A negative number restores the default.
func (c *Conn) SetLinger(sec int) error { return c.set(c.in.fabric.SetLinger(sec)) }

func (c *Conn) setTimed(set func(time.Time) error, t time.Time) error {
	if err := untimed(t); err != nil {
		return c.set(err)
	}
	return c.set(set(t))
}

func (c *Conn) set(err error) error {
	if err != nil {
		local, _ := c.in.addrs()
		err = opError("set", nil, local, err)
	}
	runtime.KeepAlive(c)
	return err
}

// The methods that follow are there for programs that look for them in any net.Conn. They do
// nothing: a fabric does not delay small writes, the control connection watches over the peer,
// and the Transport bounds the memory.

// SetNoDelay does nothing.
func (c *Conn) SetNoDelay(bool) error { return nil }

// SetKeepAlive does nothing.
func (c *Conn) SetKeepAlive(bool) error { return nil }

// SetKeepAlivePeriod does nothing.
func (c *Conn) SetKeepAlivePeriod(time.Duration) error { return nil }

// SetReadBuffer does nothing.
func (c *Conn) SetReadBuffer(int) error { return nil }

// SetWriteBuffer does nothing.
func (c *Conn) SetWriteBuffer(int) error { return nil }
