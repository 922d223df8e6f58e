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
		if c.in.fabric.Maps() {
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
	if readsOnce(w) {
		return c.lendTo(w)
	}
	buf := copyBuffers.Get().(*[copySize]byte)
	defer copyBuffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{c}, buf[:])
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

// lendTo is WriteTo without the copy.
func (c *Conn) lendTo(w io.Writer) (n int64, err error) {
	for {
		b, err := c.RecvBuffer()
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		want := len(b.Bytes())
		m, err := w.Write(b.Bytes())
		b.Release()
		n += int64(m)
		if err == nil && m < want {
			err = io.ErrShortWrite
		}
		if err != nil {
			return n, err
		}
	}
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
