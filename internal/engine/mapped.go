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
	name   pool.SharedName
	supply supply
	state  mapState
	slab   *pool.Slab // nil if it is not mapped
	waits  []func()   // called once it is mapped, or cannot be
	leases int        // leases that lie in it, and what a path check writes to
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
//	mapAsked   mapping, for the first of them, and       wait
//	           for the next one if it has failed
//	mapReady   suppliedMapped                            are copied to
//	mapFailed  suppliedMapped, if it could not be        are of no use
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

// mapping returns the slab of the peer's in which r lies, and has it mapped unless it is. then is
// called once it is mapped, or cannot be: at once if that is known.
func (p *peer) mapping(r *framing.Remote, then func(*mappedSlab)) {
	name := pool.SharedName{FD: r.FD, Inode: r.Key, Mark: p.mark}
	at := slices.IndexFunc(p.mapped, func(m *mappedSlab) bool { return m.name == name })
	if at < 0 {
		if len(p.mapped) > max(mostUnused, 2*len(p.streams)) { // the peer makes new memory for each lease
			p.trimMapped(true)
		}
		m := &mappedSlab{name: name}
		m.supply = supply{peer: p, maps: m}
		at, p.mapped = len(p.mapped), append(p.mapped, m)
		p.c.want(&m.supply)
	}
	m := p.mapped[at]
	switch m.state {
	case mapReady:
		then(m)
		return
	case mapFailed: // it may work now
		m.change(func() { m.state = mapAsked })
		p.c.want(&m.supply)
	}
	m.waits = append(m.waits, func() { then(m) })
}

// suppliedMapped takes in a peer's memory that was mapped, or why it could not be mapped.
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
		m.supply.peer.unmapped = nil
	}
	waits := m.waits
	m.waits = nil
	for _, then := range waits {
		then()
	}
}

// unmap gives the mapping up, unless a copy to it is under way.
func (m *mappedSlab) unmap(c *core) {
	if m.slab != nil && m.copies == 0 {
		c.discard(m.slab)
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
		m.supply.peer.unmapped = errNotWithin
		return nil
	}
	return mem[r.Addr:][:n:n]
}

// loseMapped ends the use of the peer's memory.
func (p *peer) loseMapped() {
	for _, m := range p.mapped {
		m.change(func() { m.state = mapGone })
		m.unmap(p.c)
	}
	p.mapped = nil
}

// mostUnused is about how many slabs of a peer stay mapped between two chores although no lease
// needs them.
const mostUnused = 64

// trimMapped unmaps memory that is unused, and was unused when it looked last, or all that is unused.
func (p *peer) trimMapped(all bool) {
	p.mapped = slices.DeleteFunc(p.mapped, func(m *mappedSlab) bool {
		if m.unused() && (m.idle || all) {
			m.change(func() { m.state = mapGone })
			m.unmap(p.c)
			return true
		}
		m.idle = m.unused()
		return false
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
	w = copied{
		mem: l.mem[off:][:k], pos: s.sndNxt, m: l.mapped,
		large: framing.Large{Lease: l.Index, Seq: l.seq, Length: uint32(k), Ring: s.largeOut},
	}
	s.beginWrite(k)
	l.seq++
	w.m.copies++
	s.p.c.copying++
	return w
}

// commitCopy tells the peer of the bytes that were copied. It reports false if the peer was lost
// or the endpoint was closed meanwhile: then nobody has the bytes.
func (s *stream) commitCopy(w *copied) bool {
	p, c := s.p, s.p.c
	if w.m.copies--; w.m.state == mapGone {
		w.m.unmap(c)
	}
	if !c.endCopying() || p.err != nil {
		s.place(-len(w.mem))
		return false
	}
	s.countLarge(len(w.mem))
	c.stats.Copies.Mapped += uint64(len(w.mem))
	c.stats.RDMAWrites++
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
