package engine

import (
	"github.com/smallnest/ringbuffer"

	"github.com/seed202c38ff/fabricnet/pool"
)

// Small data that arrives while nobody waits for it is kept in reassembly rings: in one that
// is as large as the stream's first window and, once the window has grown, in several of that
// size, one behind the other. See window.go. What a window promises is reserved in the budget
// for as long as it is promised. The rings that are mapped never take more than that, so they
// need no reservation of their own. The fabric does not touch a ring, so its pages are faulted
// in as frames are written to it, and mapping it under the lock takes only microseconds. Idle
// streams have no ring.

// ring is a reassembly ring and its memory.
type ring struct {
	*ringbuffer.RingBuffer
	slab *pool.Slab
}

// heap has the rings of all streams whose first windows have the same size.
type heap struct {
	size   int
	free   []*ring
	low    int // fewest that were free since chores looked last
	mapped int // rings, free or not; at most paid
	paid   int // windows that are reserved; at least live
	live   int // windows, or parts of windows, that streams have
}

// spareRings is how many rings that streams have left are kept for others, along
// with their reservations, while the budget has plenty: conns may come and go by the
// thousand, and windows may grow and shrink all the time.
func (h *heap) spareRings() int { return max(4, DefaultMaxWindow/h.size) }

// heap returns the heap for windows of size bytes. There are few heaps.
func (c *core) heap(size int) *heap {
	for _, h := range c.heaps {
		if h.size == size {
			return h
		}
	}
	h := &heap{size: size}
	c.heaps = append(c.heaps, h)
	return h
}

// join reserves a window, or a further part of one, unless one is left over.
func (h *heap) join(b *pool.Budget) error {
	if h.live == h.paid {
		if err := b.Reserve(h.bytes()); err != nil {
			return err
		}
		h.paid++
	}
	h.live++
	return nil
}

// bytes is what a window takes from the budget: its ring consists of whole pages.
func (h *heap) bytes() int64 { return int64(pool.Pages(h.size)) }

// leave takes back what join has reserved.
func (c *core) leave(h *heap) {
	b := c.cfg.Budget.Stats()
	h.live--
	switch {
	case h.mapped < h.paid:
		h.paid--
		c.cfg.Budget.Release(h.bytes())
	case h.paid-h.live > h.spareRings() || 4*(b.Limit-b.Used) < b.Limit:
		c.unmapRing(h)
	}
}

// get returns an empty ring.
func (h *heap) get(b *pool.Budget) (*ring, error) {
	if n := len(h.free); n > 0 {
		r := h.free[n-1]
		h.free = h.free[:n-1]
		h.low = min(h.low, n-1)
		return r, nil
	}
	slab, err := pool.NewLazySlab(b, h.size)
	if err != nil {
		return nil, err
	}
	h.mapped++
	return &ring{ringbuffer.NewBuffer(slab.Bytes()[:h.size]), slab}, nil
}

// put takes a ring back.
func (h *heap) put(r *ring) {
	r.Reset()
	h.free = append(h.free, r)
}

// unmapRing gives back one of the free rings. Unmapping a large one takes long, so that is
// left to the endpoint's goroutine, and the ring is paid for until then. unmapRing reports
// false, and does nothing, if the budget has no room for that.
func (c *core) unmapRing(h *heap) (done bool) {
	last := len(h.free) - 1
	slab, small := h.free[last].slab, h.size <= lockedCopy
	switch {
	case h.paid > h.live:
		h.paid--
		slab.Pay()
	case small: // a stream that has no ring goes on paying for its window
	case c.cfg.Budget.Reserve(h.bytes()) != nil:
		return false
	default:
		slab.Pay()
	}
	h.free[last] = nil
	h.free = h.free[:last]
	h.low = min(h.low, last)
	h.mapped--
	if !small || slab.Close() != nil {
		c.discard(slab)
	}
	return true
}

// trimRings gives back the rings that nobody has needed since its last call.
func (c *core) trimRings() {
	for _, h := range c.heaps {
		for n := h.low; n > 0 && c.unmapRing(h); n-- {
		}
		h.low = len(h.free)
	}
}

// closeRings gives up all rings, all of which are free by then. Streams that are left keep
// their windows until they are closed.
func (c *core) closeRings() {
	for _, h := range c.heaps {
		for _, r := range h.free {
			_ = r.slab.Close()
		}
		h.mapped, h.free = 0, nil
		c.cfg.Budget.Release(int64(h.paid-h.live) * h.bytes())
		h.paid = h.live
	}
}

// reassemble keeps small data until it is read.
func (s *stream) reassemble(b []byte) error {
	for len(b) > 0 {
		if s.rings.len() == 0 || (*s.rings.last()).IsFull() {
			r, err := s.heap.get(s.p.c.cfg.Budget)
			if err != nil {
				return err
			}
			s.rings.push(r)
		}
		r := *s.rings.last()
		n, err := r.TryWrite(b[:min(len(b), r.Free())])
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// unring takes the next bytes out of the reassembly rings, those of one ring at most.
func (s *stream) unring(b []byte) (int, error) {
	r := *s.rings.first()
	n, err := r.TryRead(b)
	if r.IsEmpty() {
		s.heap.put(s.rings.pop())
	}
	return n, err
}

func (s *stream) freeRings() {
	for s.rings.len() > 0 {
		s.heap.put(s.rings.pop())
	}
}
