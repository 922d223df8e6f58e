package rdmanet

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
)

// copySize is how much ReadFrom moves at a time, in bytes.
const copySize = 64 << 10

var copyBuffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// ReadFrom writes what it reads from r, until io.EOF, which is no error. Regular
// files are read straight into registered memory, where that is sent from.
func (c *Conn) ReadFrom(r io.Reader) (n int64, err error) {
	if s, ok := c.s.(*tcpStream); ok { // sendfile(2) and splice(2)
		n, err = s.ReadFrom(r)
		return n, c.err("write", err)
	}
	if isFile(r) {
		if n, err = c.sendFile(r); !errors.Is(err, ErrMemory) && !errors.Is(err, errMaps) {
			return n, err
		}
	}
	// Registered memory is scarce, and a reader that waits must not hold it.
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

// copied tells whether a copy is over, and its result.
func copied(readErr, writeErr error) (bool, error) {
	switch {
	case writeErr != nil:
		return true, writeErr
	case readErr == io.EOF:
		return true, nil
	}
	return readErr != nil, readErr
}

// isFile reports that r never waits for anybody. net/http wraps the files that
// it serves in an io.LimitedReader.
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

// errMaps: what Write copies to the peer's memory needs no memory of ours.
var errMaps = errors.New("the ring is mapped")

func (c *Conn) sendFile(r io.Reader) (n int64, err error) {
	for {
		if c.fabric.Maps() {
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

// WriteTo writes what arrives to w, until the end of the stream, which is no
// error. It does not copy what the fabric wrote directly: see RecvBuffer for what a
// hostile peer can do to that.
func (c *Conn) WriteTo(w io.Writer) (n int64, err error) {
	if s, ok := c.s.(*tcpStream); ok {
		n, err = s.WriteTo(w)
		return n, c.err("read", err)
	}
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

// WriteBuffers writes all of v, which stays together like the bytes of one Write,
// and removes from v what it has written. Small slices are gathered.
// net.Buffers.WriteTo, which cannot know of this method, writes slice by slice.
func (c *Conn) WriteBuffers(v *net.Buffers) (n int64, err error) {
	if c.fabric == nil {
		n, err = v.WriteTo(c.s.(*tcpStream).TCPConn) // writev(2)
	} else {
		n, err = c.fabric.WriteBuffers(v)
	}
	return n, c.err("write", err)
}
