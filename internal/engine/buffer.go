package engine

import (
	"errors"
	"fmt"

	"github.com/seed202c38ff/fabricnet/pool"
)

// Buffer is memory that the fabric reads or has written directly. It belongs
// to one goroutine at a time.
type Buffer struct {
	e    *Endpoint
	mem  []byte
	desc uintptr

	// Memory to send: a staging chunk, a block, or a slab of its own.
	chunk  bool
	slot   uint32
	block  *pool.Block
	slab   *pool.Slab
	flying int // RDMA writes that read from it; guarded by the endpoint's lock

	// Memory received: a piece of a stream's landing ring, or a copy.
	stream   *stream
	ring     uint64 // ring position of the first byte
	released bool
}

// errReleased: the buffer's memory is not its holder's any more.
var errReleased = errors.New("buffer was released or sent before")

// keptChunks is how much staging memory AllocBuffer leaves to writes.
const keptChunks = 8

// Bytes is the memory. It must not be used after Release or SendBuffer.
func (b *Buffer) Bytes() []byte { return b.mem }

// AllocBuffer returns n bytes of registered memory.
func (c *Conn) AllocBuffer(n int) (*Buffer, error) {
	e := c.e
	e.enter()
	defer e.leave()
	if c.stream.closed() {
		return nil, errClosed
	}
	if err := c.stream.p.err; err != nil {
		return nil, err
	}
	if n <= 0 {
		return nil, fmt.Errorf("buffer of %d bytes", n)
	}
	co := e.core
	// The last chunks are for writes, which would wait for them for ever.
	if n <= stepSize && (co.stage.Free() > keptChunks || co.stage.Len() == 0) {
		if slot, ok := co.takeStage(); ok {
			co.lent++
			return &Buffer{e: e, mem: co.stage.Bytes(slot)[:n], desc: co.stage.Desc(slot), chunk: true, slot: slot}, nil
		}
	}
	if n <= lendSlab {
		block, err := co.lend.Alloc(n)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrMemory, err)
		}
		co.lent++
		return &Buffer{e: e, mem: block.Bytes[:n:n], desc: block.Desc, block: block}, nil
	}
	slab, err := pool.NewSlab(co.cfg.Budget, e.fab, n, pool.AccessLocal)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMemory, err)
	}
	b := &Buffer{e: e, mem: slab.Bytes()[:n], slab: slab}
	if r := slab.Region(); r != nil {
		b.desc = r.Desc()
	}
	co.lent++
	co.slabs[slab] = struct{}{}
	return b, nil
}

// SendBuffer writes all of b, as one Write does, and takes it over, whatever
// it returns.
func (c *Conn) SendBuffer(b *Buffer) error {
	if b.released {
		return errReleased
	}
	if b.e != c.e || b.stream != nil || !b.chunk && b.block == nil && b.slab == nil {
		_, err := c.Write(b.mem) // not ours to send from: copy
		b.Release()
		return err
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.e.enter()
	defer c.endWrite()
	c.zeroCopy = true
	b.flying++ // ours, until all is posted
	defer b.done()
	mem := b.mem
	b.released, b.mem = true, nil
	for n := 0; n < len(mem); {
		if err := c.writeError(); err != nil {
			return err
		}
		s := c.stream
		s.p.seal()
		m := 0
		if k := s.largeRoom(len(mem)-n, chunkSize); k > 0 {
			b.flying++
			s.begin(source{mem: mem[n : n+k], desc: b.desc, buf: b})
			s.p.pushTail()
			m = k
		} else if s.grant != grantHeld || len(mem)-n <= s.p.eager {
			m = s.writeFrames(mem[n:])
		}
		if n += m; m == 0 {
			s.p.c.push(s.p) // the tail, on whose end we may wait
			c.waitWrite(len(mem) - n)
		}
	}
	return nil
}

// done notes that the fabric has finished with the buffer, or the sender.
func (b *Buffer) done() {
	if b.flying--; b.flying == 0 {
		b.free()
	}
}

// free gives memory for sending back, under the endpoint's lock.
func (b *Buffer) free() {
	c := b.e.core
	c.lent--
	switch {
	case b.chunk:
		c.stage.Put(b.slot)
		c.freed = true
	case b.block != nil:
		c.lend.Free(b.block)
	case b.slab != nil:
		_ = b.slab.Close()
		delete(c.slabs, b.slab)
	}
	c.tryFree()
}

// RecvBuffer waits for the next bytes of the stream and returns them where
// they landed, at most a quarter of the landing ring at a time. Until it is
// released, they use up the peer's window: who holds all of it waits for ever.
func (c *Conn) RecvBuffer() (*Buffer, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	c.e.enter()
	defer c.e.leave()
	s := c.stream
	for {
		if err := c.readError(); err != nil {
			return nil, err
		}
		if seg := s.segs.front(); seg != nil {
			if seg.large {
				return s.lend(seg.n), nil
			}
			b := &Buffer{mem: make([]byte, seg.n)}
			n, _ := s.tryRead(b.mem)
			b.mem = b.mem[:n]
			return b, nil
		}
		if err := s.endError(); err != nil {
			return nil, err
		}
		c.waitRead()
	}
}

// lend hands out the next n bytes of the landing ring at most.
func (s *stream) lend(n int) *Buffer {
	l := s.inLease
	n = min(n, len(l.Ring.Bytes)/4)
	b := &Buffer{e: s.conn.e, mem: l.slice(n), stream: s, ring: l.read}
	l.lent = append(l.lent, b)
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
		b.free()
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
