package rdmanet

import (
	"runtime"

	"github.com/seed202c38ff/fabricnet/internal/engine"
)

// Buffer is memory that the fabric reads from, or has written to, directly. AllocBuffer and
// RecvBuffer return one. It belongs to one goroutine at a time.
type Buffer struct {
	fabric *engine.Buffer
	mem    []byte
}

// Bytes returns the memory. It must not be used after Release or SendBuffer.
func (b *Buffer) Bytes() []byte { return b.mem }

// Release gives the memory back. It may be called more than once.
func (b *Buffer) Release() {
	b.mem = nil
	b.fabric.Release()
}

// AllocBuffer returns a Buffer of n bytes of registered memory, to fill in and pass to
// SendBuffer; n must be positive. Its contents are undefined. It fails with ErrMemory if
// the Transport's budget has no room.
func (c *Conn) AllocBuffer(n int) (*Buffer, error) {
	b, err := c.in.fabric.AllocBuffer(n)
	return c.buffer(b, "write", err)
}

// SendBuffer writes all of b, as one Write does, but without a copy where the fabric
// allows that. If both processes map the ring, it copies, as Write does. SendBuffer takes
// ownership of b, even if it fails.
func (c *Conn) SendBuffer(b *Buffer) error {
	_, err := c.sendBuffer(b)
	return err
}

// sendBuffer is SendBuffer, but also returns how many bytes are on their way, as Write does.
func (c *Conn) sendBuffer(b *Buffer) (n int, err error) {
	b.mem = nil
	n, err = c.in.fabric.SendBuffer(b.fabric)
	err = c.in.err("write", err)
	runtime.KeepAlive(c)
	return n, err
}

// RecvBuffer waits for the next bytes of the stream and returns them in a Buffer: bytes
// that the fabric wrote directly where they landed, others as a copy. A hostile peer can
// still change those that were not copied, until Release: copy before you check, or use
// TLS above.
//
// Buffers that are not released use up the window in which the peer may send. At the end
// of the stream RecvBuffer returns io.EOF.
func (c *Conn) RecvBuffer() (*Buffer, error) {
	b, err := c.in.fabric.RecvBuffer()
	return c.buffer(b, "read", err)
}

// buffer returns what op has returned, in the form in which users get it.
func (c *Conn) buffer(b *engine.Buffer, op string, err error) (*Buffer, error) {
	err = c.in.err(op, err)
	runtime.KeepAlive(c)
	if err != nil {
		return nil, err
	}
	return &Buffer{fabric: b, mem: b.Bytes()}, nil
}
