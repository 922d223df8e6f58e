package engine

import (
	"cmp"
	"errors"
	"fmt"
	"syscall"

	"github.com/seed202c38ff/fabricnet/pool"
)

// Buffer is memory that the fabric reads from or has written to directly. It belongs
// to one goroutine at a time.
type Buffer struct {
	e    *Endpoint
	mem  []byte
	desc uintptr

	// Memory to send: a block, or a slab of its own.
	block  *pool.Block
	slab   *pool.Slab
	flying int // RDMA writes that read from it, and SendBuffer itself; guarded by the endpoint's lock

	// Memory received: a piece of a stream's landing ring, or a copy.
	stream   *stream
	ring     uint64 // ring position of the first byte
	released bool
}

// errReleased: the caller has already given the buffer's memory away.
var errReleased = errors.New("buffer was released or sent before")

// Bytes returns the buffer's memory, which must not be used after Release or SendBuffer.
func (b *Buffer) Bytes() []byte { return b.mem }

// AllocBuffer returns n bytes of registered memory. It does not hold the endpoint's lock while
// it maps them.
func (c *Conn) AllocBuffer(n int) (b *Buffer, err error) {
	e := c.e
	e.enter()
	defer e.leave()
	if err := c.allocError(); err != nil {
		return nil, err
	}
	if n <= 0 {
		return nil, fmt.Errorf("buffer of %d bytes", n)
	}
	b, err = c.allocBlock(n)
	if err != nil {
		return nil, cmp.Or(c.allocError(), err)
	}
	e.core.lent++
	if err := c.allocError(); err != nil { // the conn has ended while memory was mapped
		b.free()
		return nil, err
	}
	return b, nil
}

func (c *Conn) allocError() error {
	if c.stream.closed() {
		return errClosed
	}
	if c.stream.p.err != nil {
		return syscall.ECONNRESET
	}
	return nil
}

// allocBlock takes a block, or a slab of its own: for a long Buffer, and for a short one if the budget has no room
// for more blocks.
func (c *Conn) allocBlock(n int) (*Buffer, error) {
	e, co := c.e, c.e.core
	if block := co.lend.Get(n); block != nil {
		return &Buffer{e: e, mem: block.Bytes[:n:n], desc: block.Desc, block: block}, nil
	}
	if n <= lendSlab {
		slab, err := e.mapSlab(func() (*pool.Slab, error) { return co.lend.Map(lendSlab) })
		if err == nil {
			co.lend.Add(slab)
			return c.allocBlock(n)
		}
	}
	slab, err := e.mapSlab(func() (*pool.Slab, error) { return pool.NewSlab(co.cfg.Budget, e.fab, n, pool.AccessLocal) })
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMemory, err)
	}
	b := &Buffer{e: e, mem: slab.Bytes()[:n], slab: slab}
	if r := slab.Region(); r != nil {
		b.desc = r.Desc()
	}
	co.slabs[slab] = struct{}{}
	return b, nil
}

// SendBuffer writes all of b as one Write does. It takes b over, whatever it
// returns.
func (c *Conn) SendBuffer(b *Buffer) (n int, err error) {
	if b.released {
		return 0, errReleased
	}
	if b.e != c.e || b.stream != nil || b.block == nil && b.slab == nil {
		n, err := c.Write(b.mem) // not memory that we can send from: copy it
		b.Release()
		return n, err
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.e.enter()
	defer c.endWrite()
	c.zeroCopy = true
	b.flying++ // one is for this call, until everything is posted
	defer b.done()
	mem, frames := b.mem, c.stream.smallOut
	b.released, b.mem = true, nil
	if c.passes(len(mem)) {
		return len(mem), nil
	}
	for n < len(mem) {
		frames = c.giveWay(frames)
		if err := c.writeError(); err != nil {
			return n, err
		}
		m, retry := c.send(b, mem[n:])
		if n += m; m == 0 && !retry {
			c.waitWrite(len(mem) - n)
		}
	}
	return n, c.awaitPosted()
}

// send moves as much of mem, the rest of b, as it can without waiting. retry is as in write.
func (c *Conn) send(b *Buffer, mem []byte) (n int, retry bool) {
	s := c.stream
	if s.copies() {
		if n, retry = c.copyIn(mem); retry {
			return 0, true
		}
	} else if n = s.largeRoom(len(mem), s.mostAtOnce()); n > 0 {
		b.flying++
		s.post(source{mem: mem[:n], desc: b.desc, buf: b})
	}
	if n == 0 && (!s.ringServes() || len(mem) <= s.p.eager) {
		n = s.writeFrames(mem)
	}
	return n, false
}

// mostAtOnce is the most, in bytes, that the stream's writer puts into the ring at a time.
func (s *stream) mostAtOnce() int {
	if s.conn.zeroCopy && !s.copies() {
		return chunkSize
	}
	return stepSize
}

// done notes that one RDMA write, or SendBuffer itself, has finished with the buffer. The last
// one to finish frees it.
func (b *Buffer) done() {
	if b.flying--; b.flying == 0 {
		b.free()
	}
}

// free gives memory for sending back. The caller holds the endpoint's lock.
func (b *Buffer) free() {
	c := b.e.core
	c.lent--
	switch {
	case b.block != nil:
		c.lend.Free(b.block)
		c.discard(c.lend.Trim(lendKeep)...)
	case b.slab != nil:
		delete(c.slabs, b.slab)
		c.discard(b.slab)
	}
	c.tryFree()
}

// RecvBuffer waits for the next bytes of the stream and returns large data where it landed, at
// most a quarter of the landing ring at a time. Until the Buffer is released, the peer cannot
// write to that part of the ring again. If the caller holds so much that the peer might wait
// for room, the peer goes on in frames: see unhold.
func (c *Conn) RecvBuffer() (*Buffer, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	c.e.enter()
	defer c.e.leave()
	if err := c.awaitRead(); err != nil {
		return nil, err
	}
	s := c.stream
	seg := s.segs.front()
	if seg.large {
		return s.lend(seg.n), nil
	}
	b := &Buffer{mem: make([]byte, min(seg.n, lockedCopy))}
	n, _ := s.tryRead(b.mem)
	b.mem = b.mem[:n]
	return b, nil
}

// lend hands out the next bytes of the landing ring, n at most.
func (s *stream) lend(n int) *Buffer {
	n = min(n, len(s.reading().Ring.Bytes)/4)
	b := &Buffer{e: s.conn.e, mem: s.slice(n), stream: s, ring: s.largeRead}
	s.lent = append(s.lent, b)
	s.p.c.lent++
	s.p.c.stats.Copies.Lent += uint64(len(b.mem))
	s.consumeLarge(len(b.mem))
	return b
}

// Release gives the memory back. It may be called more than once.
func (b *Buffer) Release() {
	if b.e == nil {
		b.released, b.mem = true, nil
		return
	}
	b.e.enter()
	defer b.e.leave()
	if b.released {
		return
	}
	b.released, b.mem = true, nil
	if b.stream == nil {
		if b.free(); b.slab != nil {
			b.e.unmap() // whoever releases a large one may want another
		}
		return
	}
	s, c := b.stream, b.e.core
	c.lent--
	if s.inLease != nil {
		s.releaseRing()
		s.release()
	}
	c.tryFree()
}
