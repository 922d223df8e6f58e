package engine

import (
	"errors"
	"fmt"
	"slices"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/pool"
)

// Mapped rings. Where both processes can map the memory of a landing ring, a write to it is a
// copy by the writer's processor, from the user's memory to where the reader reads it. The bytes
// have landed when the copy returns, and a Large frame with FlagLanded says so (rule 4 of SPEC.md
// section 5). The rest of the protocol is the same: the ring, its credits, and how it is returned.
//
//	prepareCopy   with the lock: takes the bytes' place in the stream and in the ring, and the
//	              slots for the frame, if maySpend allows it
//	copy          without the lock: the count of writes in flight keeps the lease, and a count of
//	              copies keeps the memory mapped
//	commitCopy    with the lock: sends the frame
//
// The memory that a Lease names is mapped by a goroutine of the endpoint (see supply.go). Until
// then the stream has no ring, and its data goes in frames. If the memory cannot be mapped, the
// same ring is written to by RDMA. Memory in which no lease has lain for a while is unmapped.

// errNotShared: the peer could not share the memory of its ring.
var errNotShared = errors.New("the peer does not share it")

// errNotWithin: the peer has named a place outside the file.
var errNotWithin = errors.New("it does not lie where the peer says")

// mappedSlab is a slab of the peer's landing memory that is mapped here, or is to be.
type mappedSlab struct {
	name   pool.SharedName
	supply supply
	state  mapState
	slab   *pool.Slab // nil if it is not mapped
	waits  []*stream  // streams whose leases lie in it and wait for it to be mapped
	leases int        // other leases that lie in it
	copies int        // copies to it that are under way
	idle   bool       // it was unused when chores looked last
}

// unused reports whether no lease needs the slab.
func (m *mappedSlab) unused() bool {
	return (m.state == mapReady || m.state == mapFailed) && m.leases == 0
}

// change calls f, which changes what unused depends on, and keeps core.unusedMaps right.
func (m *mappedSlab) change(f func()) {
	was := m.unused()
	f()
	switch c := m.supply.peer.c; {
	case was && !m.unused():
		c.unusedMaps--
	case !was && m.unused():
		c.unusedMaps++
	}
}

// mapState says how far the mapping of a peer's slab has come.
//
//	state      moved there by                            leases in it
//	mapAsked   offered, for the first of them            wait
//	mapReady   suppliedMapped                            are copied to
//	mapFailed  suppliedMapped, if it could not be        are written to by RDMA
//	           mapped
//	mapGone    loseMapped, with the peer; or trimMapped  are over; the slab is unmapped after
//	                                                     the last copy
type mapState uint8

const (
	mapAsked mapState = iota
	mapReady
	mapFailed
	mapGone
)

// offered takes in a lease whose memory this side may map. It reports false if there is nothing
// to map: the ring is for RDMA then.
func (s *stream) offered(l *framing.Lease) bool {
	p := s.p
	switch {
	case p.cfg.Memory == nil:
		return false
	case l.Shared.Inode == 0:
		p.unmapped = errNotShared
		return false
	}
	name := pool.SharedName{FD: l.Shared.FD, Inode: l.Shared.Inode, Mark: p.mark}
	at := slices.IndexFunc(p.mapped, func(m *mappedSlab) bool { return m.name == name })
	if at < 0 {
		m := &mappedSlab{name: name}
		m.supply = supply{peer: p, maps: m}
		at, p.mapped = len(p.mapped), append(p.mapped, m)
		p.c.want(&m.supply)
	}
	m := p.mapped[at]
	if m.state == mapAsked {
		s.offer = l
		m.waits = append(m.waits, s)
		return true
	}
	s.hold(l, m)
	return true
}

// suppliedMapped takes in a peer's memory that was mapped, or why it could not be mapped: the
// rings in it are for RDMA then.
func (c *core) suppliedMapped(m *mappedSlab, slab *pool.Slab, err error) {
	m.slab = slab
	switch {
	case m.state == mapGone:
		m.unmap(c)
		return
	case err != nil:
		m.change(func() { m.state = mapFailed })
		m.supply.peer.unmapped = err
	default:
		m.change(func() { m.state = mapReady })
	}
	for _, s := range m.waits {
		if l := s.offer; l != nil {
			s.hold(l, m)
		}
	}
	m.waits = nil
}

// unmap gives the mapping up, unless a copy to it is under way.
func (m *mappedSlab) unmap(c *core) {
	if m.slab != nil && m.copies == 0 {
		c.discard(m.slab)
		m.slab = nil
	}
}

// within returns the ring that l says lies in m, nil if it does not or m is not mapped.
func (m *mappedSlab) within(l *framing.Lease) []byte {
	if m == nil || m.slab == nil {
		return nil
	}
	mem := m.slab.Bytes()
	if size := uint64(len(mem)); l.Shared.Offset > size || l.Size > size-l.Shared.Offset {
		return nil
	}
	return mem[l.Shared.Offset:][:l.Size:l.Size]
}

// loseMapped ends the use of the peer's memory.
func (p *peer) loseMapped() {
	for _, m := range p.mapped {
		m.change(func() { m.state = mapGone })
		m.unmap(p.c)
	}
	p.mapped = nil
}

// trimMapped is one of the chores. It unmaps memory that was unused when it looked last, and is
// unused now.
func (p *peer) trimMapped() {
	p.mapped = slices.DeleteFunc(p.mapped, func(m *mappedSlab) bool {
		if m.unused() && m.idle {
			m.change(func() { m.state = mapGone })
			m.unmap(p.c)
			return true
		}
		m.idle = m.unused()
		return false
	})
}

// Maps reports whether c's large data is copied to where the peer reads it.
func (c *Conn) Maps() bool {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	return c.stream.maps()
}

// maps is Maps with the lock held. Without a ring, it goes by the last one that the peer has granted.
func (s *stream) maps() bool {
	if l := s.outLease; l != nil {
		return l.mem != nil
	}
	return s.p.maps
}

// LargePath says how c's large data travels, as far as is known.
func (c *Conn) LargePath() string {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	rule, p := ChooseRule(c.e.attr).String(), c.stream.p
	switch {
	case c.stream.maps():
		return "copy to a ring that both processes map"
	case p.unmapped != nil:
		return fmt.Sprintf("%s (its ring is not mapped: %v)", rule, p.unmapped)
	case p.cfg.Memory != nil:
		return rule + " (no ring is mapped yet)"
	}
	return rule
}

// copied is a write to a mapped ring that is under way.
type copied struct {
	mem      []byte // where to copy to; nil if there is no room
	pos      uint64 // stream position of the first byte
	announce uint32 // send slot for the frame that announces it
	large    framing.Large
	m        *mappedSlab
}

// prepareCopy takes a place for the next of the n bytes that are left. The caller copies as many
// as w.mem holds, and then calls commitCopy.
func (s *stream) prepareCopy(n int) (w copied) {
	if !s.copies() {
		return w
	}
	k := s.largeRoom(n, stepSize)
	if k == 0 {
		return w
	}
	p, l := s.p, s.outLease
	p.seal()
	off := framing.RingOffset(s.largeOut-l.base, l.Size)
	w = copied{
		mem: l.mem[off:][:k], pos: s.sndNxt, m: l.mapped,
		large: framing.Large{Lease: l.Index, Seq: l.seq, Length: uint32(k), Ring: s.largeOut},
	}
	w.announce, _ = p.c.tx.Get()
	p.frames++
	s.beginWrite(k)
	l.seq++
	w.m.copies++
	p.copies++
	p.c.copying++
	return w
}

// maySpend reports whether the peer has receive slots for one more write of the stream.
func (s *stream) maySpend() bool {
	n := s.writeSlots()
	if s.copies() {
		n += s.p.besideCopies()
	}
	return s.p.mayData(n)
}

// besideCopies is how many of the peer's receive slots another copy has to leave. A copy holds
// its slot for as long as it takes, which may be long if the user's memory has to be read from a
// disk first. So all copies together hold either one slot, or at least two fewer than the other
// slots that we know of. That leaves slots for everything else. And it makes the peer, which takes
// the slots that copies hold for unused, tell us of new ones before the others run out (see
// creditDue).
func (p *peer) besideCopies() uint32 {
	if p.copies == 0 {
		return 0
	}
	return uint32(p.copies) + 2
}

// commitCopy tells the peer of the bytes that were copied. It reports false if the peer was lost
// or the endpoint was closed meanwhile: then nobody has the bytes.
func (s *stream) commitCopy(w *copied) bool {
	p, c := s.p, s.p.c
	if w.m.copies--; w.m.state == mapGone {
		w.m.unmap(c)
	}
	up := c.endCopying()
	full := !p.mayData(1 + p.besideCopies())
	p.copies--
	p.frames--        // announce counts it again
	if p.err != nil { // also if the endpoint was closed
		s.place(-len(w.mem))
		if up {
			c.tx.Put(w.announce)
		}
		return false
	}
	s.countLarge(len(w.mem))
	c.stats.Copies.Mapped += uint64(len(w.mem))
	c.stats.RDMAWrites++
	s.announce(&ctlFrame{t: framing.TypeLarge, flags: framing.FlagLanded, stream: s.id, pos: w.pos}, w.announce, &w.large)
	p.copied++
	s.written()
	c.push(p)
	if full { // a writer may have waited for this copy to end
		c.touch(p)
	}
	return true
}

// endMapped forgets a mapped ring to which nothing more will be written. The peer counts our Fin,
// or our answer to its Fin or Reset, as the return of the ring.
func (s *stream) endMapped() {
	if s.copies() && !s.mayData() && s.writing == 0 {
		s.dropGrant()
	}
}
