package engine

import (
	"errors"
	"fmt"
	"slices"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/pool"
)

// Mapped rings. Between processes of one host (Attr.SameHost) both map the memory of a landing
// ring, and a write to it is a copy by the writer's processor, from the user's memory to where the
// reader reads it. The bytes have landed when the copy returns, and a Large frame with FlagLanded
// says so (rule 4 of SPEC.md section 5). The rest of the protocol is the same: the ring, its
// credits, and how it is returned.
//
//	prepareCopy   with the lock: takes the bytes' place in the stream and in the ring
//	copy          without the lock: the count of writes in flight keeps the lease, and a count of
//	              copies keeps the memory mapped
//	commitCopy    with the lock: queues the frame, as a control frame
//
// A copy may take long, if the user's memory has to be read from a disk first. So it holds nothing that
// others need: the frame gets its slots after the copy, before any later data of the stream (see
// mayLeave).
//
// The memory that a Lease names is mapped by a goroutine of the endpoint (see supply.go). Until
// then the stream has no ring, and its data goes in frames. If the memory cannot be mapped, that
// goes on until the peer takes the lease back, which it does for lack of use; a second ring is given
// back at once (see grow.go). Memory in which no lease has lain for a while is unmapped.

// errNotWithin: the peer has named a place outside the file.
var errNotWithin = errors.New("it does not lie where the peer says")

// mappedSlab is a slab of the peer's landing memory that is mapped here, or is to be.
type mappedSlab struct {
	peer   *peer
	name   pool.SharedName
	supply supply
	slab   *pool.Slab // nil if it is not mapped
	leases int        // leases that lie in it, and what a path check writes to
	copies int        // copies to it that are under way
	gone   bool       // nothing more is written to it: the slab is unmapped after the last copy
}

// unused reports whether no lease needs the slab.
func (m *mappedSlab) unused() bool { return m.supply.state == enough && m.leases == 0 }

// mapping returns the slab of the peer's in which r lies, and has it mapped unless it is.
func (p *peer) mapping(r *framing.Remote) *mappedSlab {
	name := pool.SharedName{FD: r.FD, Inode: r.Key, Mark: p.mark}
	at := slices.IndexFunc(p.mapped, func(m *mappedSlab) bool { return m.name == name })
	if at < 0 {
		if len(p.mapped) > max(mostUnused, 2*len(p.streams)) { // the peer makes new memory for each lease
			p.trimMapped()
		}
		m := &mappedSlab{peer: p, name: name}
		m.supply.begin = m.order
		at, p.mapped = len(p.mapped), append(p.mapped, m)
	}
	m := p.mapped[at]
	if m.slab == nil {
		p.c.want(&m.supply) // if it could not be mapped, that may work now
	}
	return m
}

// order has the peer's memory mapped.
func (m *mappedSlab) order() (work, done func()) {
	if m.gone {
		return nil, nil
	}
	var slab *pool.Slab
	var err error
	return func() { slab, err = m.peer.cfg.Memory(m.name) }, func() { m.supplied(slab, err) }
}

// supplied takes in a peer's memory that was mapped, or why it could not be mapped.
func (m *mappedSlab) supplied(slab *pool.Slab, err error) {
	if m.slab = slab; m.gone {
		m.unmap()
		return
	}
	m.peer.unmapped = err
	for _, s := range m.peer.list {
		if s.offer != nil && s.offer.mapped == m {
			s.located()
		}
	}
}

// unmap gives the mapping up, unless a copy to it is under way.
func (m *mappedSlab) unmap() {
	if m.slab != nil && m.copies == 0 {
		m.peer.c.discard(m.slab)
		m.slab = nil
	}
}

// within returns the n bytes that r names, nil if they do not lie in m or it is not mapped.
func (m *mappedSlab) within(r *framing.Remote, n uint64) []byte {
	if m.slab == nil {
		return nil
	}
	mem := m.slab.Bytes()
	if size := uint64(len(mem)); r.Addr > size || n > size-r.Addr {
		m.peer.unmapped = errNotWithin
		return nil
	}
	return mem[r.Addr:][:n:n]
}

// lose ends the use of the peer's memory.
func (m *mappedSlab) lose() {
	m.gone = true
	m.unmap()
}

// loseMapped ends the use of all of the peer's memory.
func (p *peer) loseMapped() {
	for _, m := range p.mapped {
		m.lose()
	}
	p.mapped = nil
}

// mostUnused is about how many slabs of a peer stay mapped between two chores although no lease
// needs them.
const mostUnused = 64

// trimMapped unmaps memory that is unused.
func (p *peer) trimMapped() {
	p.mapped = slices.DeleteFunc(p.mapped, func(m *mappedSlab) bool {
		unused := m.unused()
		if unused {
			m.lose()
		}
		return unused
	})
}

// Copies reports whether c's large data is copied to where the peer reads it.
func (c *Conn) Copies() bool { return c.e.attr.SameHost }

// LargePath says how c's large data travels.
func (c *Conn) LargePath() string {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	s := c.stream
	if !s.copies() && s.p.unmapped != nil {
		return fmt.Sprintf("%s (not mapped, so in frames: %v)", s.p.c.rule, s.p.unmapped)
	}
	return s.p.c.rule.String()
}

// copied is a write to a mapped ring that is under way.
type copied struct {
	mem   []byte // where to copy to; nil if there is no room
	pos   uint64 // stream position of the first byte
	large framing.Large
	m     *mappedSlab
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
	l := s.outLease
	off := framing.RingOffset(s.largeOut-l.base, l.Size)
	w = copied{mem: l.mem[off:][:k], pos: s.sndNxt, m: l.mapped}
	w.large = s.beginWrite(k)
	w.m.copies++
	s.p.c.copying++
	return w
}

// commitCopy tells the peer of the bytes that were copied. It reports false if the peer was lost
// or the endpoint was closed meanwhile: then nobody has the bytes.
func (s *stream) commitCopy(w *copied) bool {
	p, c := s.p, s.p.c
	if w.m.copies--; w.m.gone {
		w.m.unmap()
	}
	if !c.endCopying() || p.err != nil {
		s.place(-len(w.mem))
		return false
	}
	s.countLarge(len(w.mem))
	s.stats.Copies.Mapped += uint64(len(w.mem))
	p.control((&txOp{stream: s, large: w.large, pos: w.pos}).largeFrame(framing.FlagLanded))
	p.copied++
	s.written()
	p.flush()
	return true
}

// endMapped forgets a mapped ring to which nothing more will be written. The peer counts our Fin,
// or our answer to its Fin or Reset, as the return of the ring.
func (s *stream) endMapped() {
	if s.copies() && !s.mayData() && s.writing == 0 {
		s.dropGrant()
	}
}
