package engine

// How many bytes of small data a peer may send before somebody reads: the window of a stream.
//
//	the reader        the window
//	keeps up          is as large as at first, beyond what has been read
//	falls behind      grows: before the peer would have to wait, it is promised as much as at
//	                  first beyond what has arrived, up to Config.MaxWindow beyond what was read
//	catches up        is as large as at first again: what was promised is kept, but no more is
//	                  promised until that is less than the first window
//
// So a stream that nobody reads keeps its writer from waiting for long, as the buffers of a
// socket do, and one that was read to its end takes no more memory than a new one. Memory is
// reserved before it is promised. It comes in parts as large as the first window, each of which
// pays for a ring. See mayTake for when there is none.

// window is what the receiver of small data has promised, and the memory for it.
type window struct {
	promised uint64      // bytes of small data that there is memory for, since the start of the stream
	heap     *heap       // of rings as large as the first window
	parts    int         // of the heap's reservations, those that are this stream's
	rings    fifo[*ring] // those that have data, in stream order; no more than parts
}

// first is the size of the first window.
func (w *window) first() uint64 { return uint64(w.heap.size) }

// partsFor is how many parts n promised bytes take. Of several rings, the one that is being read
// and the one that is being written to may both be nearly empty.
func (w *window) partsFor(n uint64) int {
	if n <= w.first() {
		return 1
	}
	return int((n+w.first()-1)/w.first()) + 1
}

// most is the largest window that the stream may have. If it began with less than others, so
// much less is the most.
func (s *stream) most() uint64 {
	return uint64(s.p.c.cfg.MaxWindow) * s.first() / uint64(s.p.c.cfg.Window)
}

// promise promises the peer what it may be promised by now, and has it told if that is much. It
// is called when small data was read, or is to be kept, and when the stream gets a landing ring or
// loses it.
func (s *stream) promise() {
	s.promised = max(s.promised, s.smallRead+s.first())
	if s.advertisedWindow <= s.smallIn+s.first()/4 {
		s.grow()
	}
	if s.parts > 1 {
		s.leave(max(s.rings.len(), s.partsFor(s.promised-s.smallRead)))
	}
	if s.promised-s.advertisedWindow >= s.first()/2 {
		s.markDirty()
	}
}

// grow promises the peer, which would soon have to wait, more than what the reader has made room
// for, unless the peer would not be told of so little. What has a landing ring, or waits for one,
// does without: the ring takes what the window does not, and at less cost. With a large window a
// writer would fall back to small frames whenever its ring is full.
func (s *stream) grow() {
	to := min(s.smallIn+s.first(), s.smallRead+s.most())
	ring := s.claim == claimOpen || s.inLease != nil || s.checks // whose sender needs no more
	if to < s.advertisedWindow+s.first()/2 || to <= s.promised || s.recv != recvOpen || ring {
		return
	}
	parts := s.partsFor(to - s.smallRead)
	if !s.mayTake(parts) {
		return
	}
	for s.parts < parts {
		if !s.join() {
			return
		}
	}
	s.promised = to
}

// mayTake reports whether the stream may have a window of that many parts. Grown windows take
// nothing of the half of the budget that is used last, and the windows of a peer grow to no more
// than an eighth of the budget together, however many of its streams nobody reads. A stream takes
// no more than half of what there would be for it if it had none, so some is left for others.
func (s *stream) mayTake(parts int) bool {
	b := s.p.c.cfg.Budget.Stats()
	left := min(b.Limit/2-b.Used, b.Limit/8-s.p.windows)
	return 2*int64(parts)*s.heap.bytes() <= left+int64(s.parts)*s.heap.bytes()
}

// join reserves another part, and reports whether the budget had room for it.
func (s *stream) join() bool {
	if s.heap.join(s.p.c.cfg.Budget) != nil {
		return false
	}
	s.parts++
	s.p.windows += s.heap.bytes()
	return true
}

// leave gives back all parts but n.
func (s *stream) leave(n int) {
	for ; s.parts > n; s.parts-- {
		s.p.windows -= s.heap.bytes()
		s.p.c.leave(s.heap)
	}
}
