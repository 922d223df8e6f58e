package engine

import (
	"errors"
	"fmt"
	"slices"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/pool"
)

// Mapped rings. Where both processes can map the memory of a landing ring, a write to it is a
// copy by the writer's processor, from the user's memory to where the reader reads it: it has
// landed when it returns, and a Large frame with FlagLanded says so (rule 4 of SPEC.md section
// 5). Nothing else of the protocol is different: the ring, its credits and its way back are.
//
//	prepareCopy   with the lock: takes the bytes' place in the stream and in the ring, and the
//	              slots for the frame, if maySpend
//	copy          without. The count of writes in flight keeps the lease, and a count of
//	              copies the memory mapped
//	commitCopy    with the lock: sends the frame
//
// What a Lease names is mapped by a goroutine of the endpoint's (see supply.go); until then the
// stream has no ring, and its data goes in frames. If it cannot be mapped, the same ring is
// written to by RDMA. What no lease lies in for a while is unmapped.

// errNotShared: the peer could not share it.
var errNotShared = errors.New("the peer does not share it")

// errNotWithin: the peer has named a place that is not in the file.
var errNotWithin = errors.New("it does not lie where the peer says")

// mappedSlab is a slab of the peer's landing memory that is mapped here, or is to be.
type mappedSlab struct {
	name   pool.SharedName
	supply supply
	state  mapState
	slab   *pool.Slab // nil: it is not mapped
	waits  []*stream  // whose leases lie in it, and wait for that
	leases int        // others that lie in it
	copies int        // to it that are under way
	idle   bool       // since chores looked last
}

// unused reports that no lease needs the slab.
func (m *mappedSlab) unused() bool {
	return (m.state == mapReady || m.state == mapFailed) && m.leases == 0
}

// change changes what unused depends on.
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

// mapState is how far a slab of the peer's has come.
//
//	state      moved there by                           leases in it
//	mapAsked   offered, by the first of them            wait
//	mapReady   suppliedMapped                           are copied to
//	mapFailed  the same, if it could not be mapped      are written to by RDMA
//	mapGone    loseMapped, with the peer, or trimMapped are over; it is unmapped after the last copy
type mapState uint8

const (
	mapAsked mapState = iota
	mapReady
	mapFailed
	mapGone
)

// offered takes in a lease in memory that can be mapped here. It reports false if the ring is
// for RDMA.
func (s *stream) offered(l *framing.Lease) bool {
	p := s.p
	switch {
	case p.cfg.Memory == nil:
		return false
	case l.Shared.Inode == 0:
		p.unmapped = errNotShared
		return false
	}
	name := pool.SharedName{FD: l.Shared.FD, Inode: l.Shared.Inode}
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

// suppliedMapped takes in the memory of a peer's that was mapped, or why it could not be: then
// the rings in it are for RDMA.
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

// unmap gives the mapping up.
func (m *mappedSlab) unmap(c *core) {
	if m.slab != nil && m.copies == 0 {
		c.discard(m.slab)
		m.slab = nil
	}
}

// within is the ring that l says lies in m, nil if it does not, or m is not mapped.
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

// trimMapped is for chores.
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

// Maps reports that c's large data is copied to where the peer reads it.
func (c *Conn) Maps() bool {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	return c.stream.maps()
}

// maps is Maps. While there is no ring, it goes by the last that came of the peer.
func (s *stream) maps() bool {
	if l := s.outLease; l != nil {
		return l.mem != nil
	}
	return s.p.maps
}

// LargePath says how c's large data travels, as far as that is known.
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
	mem      []byte // where to copy it; nil if there is no room
	pos      uint64 // stream position of the first byte
	announce uint32 // send slot for the frame
	large    framing.Large
	m        *mappedSlab
}

// prepareCopy takes a place for the next bytes of the n that are left. The caller copies as many
// as there is memory for, and calls commitCopy.
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

// maySpend reports whether the peer has receive slots for one more write.
func (s *stream) maySpend() bool {
	n := s.writeSlots()
	if s.copies() {
		n += s.p.besideCopies()
	}
	return s.p.mayData(n)
}

// besideCopies is how many of the peer's receive slots another copy has to leave. A copy holds
// its slot for as long as it takes, which may be long where the user's memory has to be read from
// a disk first. All copies together hold one, or so few that the others which we know of are two
// more: so there are some for all else, and the peer, which takes those that are held for unused,
// tells of new ones before they have run out (see creditDue).
func (p *peer) besideCopies() uint32 {
	if p.copies == 0 {
		return 0
	}
	return uint32(p.copies) + 2
}

// commitCopy tells the peer of the bytes that were copied. It reports false if that was lost
// meanwhile, or the endpoint closed: then nobody has them.
func (s *stream) commitCopy(w *copied) bool {
	p, c := s.p, s.p.c
	if w.m.copies--; w.m.state == mapGone {
		w.m.unmap(c)
	}
	up := c.endCopying()
	full := !p.mayData(1 + p.besideCopies())
	p.copies--
	p.frames--        // announce counts it
	if p.err != nil { // as when the endpoint was closed
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

// endMapped forgets a mapped ring that nothing more is written to: the peer counts our Fin, or
// the answer to its own or to its Reset, as its return.
func (s *stream) endMapped() {
	if s.copies() && !s.mayData() && s.writing == 0 {
		s.dropGrant()
	}
}
