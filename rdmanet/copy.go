package rdmanet

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
)

// copySize is how much ReadFrom moves at a time, in bytes.
const copySize = 64 << 10

var copyBuffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// ReadFrom implements io.ReaderFrom: it writes what it reads from r until io.EOF, which is
// no error. Regular files are read straight into registered memory if the fabric sends
// from there.
func (c *Conn) ReadFrom(r io.Reader) (n int64, err error) {
	if isFile(r) {
		if n, err = c.sendFile(r); !errors.Is(err, ErrMemory) && !errors.Is(err, errMaps) {
			return n, err
		}
	}
	// Registered memory is scarce, and must not be held while r waits.
	buf := copyBuffers.Get().(*[copySize]byte)
	defer copyBuffers.Put(buf)
	for {
		m, rerr := r.Read(buf[:])
		var werr error
		if m > 0 {
			m, werr = c.Write(buf[:m])
			n += int64(m)
		}
		if done, err := copied(rerr, werr); done {
			return n, err
		}
	}
}

// copied reports whether a copy is over, and returns its result.
func copied(readErr, writeErr error) (bool, error) {
	switch {
	case writeErr != nil:
		return true, writeErr
	case readErr == io.EOF:
		return true, nil
	}
	return readErr != nil, readErr
}

// isFile reports whether r is a regular file, which never waits for anybody. net/http
// wraps the files that it serves in an io.LimitedReader.
func isFile(r io.Reader) bool {
	if l, ok := r.(*io.LimitedReader); ok {
		r = l.R
	}
	f, ok := r.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode().IsRegular()
}

// errMaps ends sendFile where Write copies straight to the peer's memory: that needs no
// registered memory of ours.
var errMaps = errors.New("the ring is mapped")

func (c *Conn) sendFile(r io.Reader) (n int64, err error) {
	for {
		if c.in.fabric.Copies() {
			return n, errMaps
		}
		b, err := c.AllocBuffer(copySize)
		if err != nil {
			return n, err
		}
		m, rerr := r.Read(b.Bytes())
		if m == copySize {
			m, err = c.sendBuffer(b)
		} else {
			if m > 0 {
				m, err = c.Write(b.Bytes()[:m])
			}
			b.Release()
		}
		n += int64(m)
		if done, err := copied(rerr, err); done {
			return n, err
		}
	}
}

// WriteTo implements io.WriterTo: it writes what arrives to w until the end of the stream,
// which is no error. w gets a copy, which the peer cannot change while w reads it, perhaps
// more than once. A few types that read it once get what the fabric wrote where it landed:
// *os.File, *net.TCPConn, *Conn and io.Discard.
func (c *Conn) WriteTo(w io.Writer) (n int64, err error) {
	pass := c.copyTo
	if readsOnce(w) {
		pass = c.lendTo
	}
	for {
		m, rerr, werr := pass(w)
		n += int64(m)
		if done, err := copied(rerr, werr); done {
			return n, err
		}
	}
}

// readsOnce reports whether w is of a type that reads each byte once at most, and shows it to
// nobody before that. A type around one of these may do more.
func readsOnce(w io.Writer) bool {
	switch w.(type) {
	case *os.File, *net.TCPConn, *Conn:
		return true
	}
	return w == io.Discard
}

// copyTo writes a copy of the next bytes to w. It holds no buffer while it waits for them, since
// many conns may be idle.
func (c *Conn) copyTo(w io.Writer) (n int, readErr, writeErr error) {
	c.in.fabric.AwaitRead()
	buf := copyBuffers.Get().(*[copySize]byte)
	defer copyBuffers.Put(buf)
	if n, readErr = c.Read(buf[:]); readErr != nil {
		return 0, readErr, nil
	}
	n, writeErr = writeAll(w, buf[:n])
	return n, nil, writeErr
}

// lendTo writes the next bytes to w without a copy.
func (c *Conn) lendTo(w io.Writer) (n int, readErr, writeErr error) {
	b, err := c.RecvBuffer()
	if err != nil {
		return 0, err, nil
	}
	defer b.Release()
	n, writeErr = writeAll(w, b.Bytes())
	return n, nil, writeErr
}

// writeAll writes b to w. It fails if w leaves something out without an error.
func writeAll(w io.Writer, b []byte) (n int, err error) {
	if n, err = w.Write(b); err == nil && n != len(b) {
		err = io.ErrShortWrite
	}
	return n, err
}

// WriteBuffers writes all of v and removes from v what it has written. The bytes stay
// together like those of one Write. Small slices are gathered. net.Buffers.WriteTo does
// not know of this method, and writes slice by slice.
func (c *Conn) WriteBuffers(v *net.Buffers) (n int64, err error) {
	n, err = c.in.fabric.WriteBuffers(v)
	err = c.in.err("write", err)
	runtime.KeepAlive(c)
	return n, err
}
