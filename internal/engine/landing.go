package engine

import (
	"fmt"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/pool"
)

// inLease is a landing ring that we have granted the peer for one stream.
type inLease struct {
	*pool.Lease
	base    uint64 // ring position at which the lease began
	chunk   uint32
	seq     uint16 // of the write that is next in line
	last    uint32 // length of the last write taken; 0 before the first
	end     uint64 // stream position behind it
	writes  [framing.MaxWrites]landing
	lent    []*Buffer // pieces of the ring that the user holds, in order
	read    uint64    // ring position of the next byte to be read
	since   int64     // when it was granted
	touched int64     // when it was used last, for taking idle leases back

	unread writeLog
	told   uint16 // writes read, as of the last frame sent
}

// writeLog counts the writes of a lease that are not read yet: both sides
// bound their number.
type writeLog struct {
	ends [framing.MaxWrites]uint64 // ring positions behind them
	read uint16                    // writes that have been read
	next uint16
}

func (w *writeLog) len() int { return int(w.next - w.read) }

func (w *writeLog) add(end uint64) {
	w.ends[w.next%framing.MaxWrites] = end
	w.next++
}

// extend moves the end of the write that was added last.
func (w *writeLog) extend(end uint64) { w.ends[(w.next-1)%framing.MaxWrites] = end }

// retire forgets the writes before ring position pos.
func (w *writeLog) retire(pos uint64) {
	for w.read != w.next && w.ends[w.read%framing.MaxWrites] <= pos {
		w.read++
	}
}

// landing is what is known of one write: two notices complete it, in either
// order.
type landing struct {
	announced bool // a Large frame said where it belongs
	landed    bool // its bytes are in the ring
	continues bool
	pos       uint64
	ring      uint64
	n         uint32
}

// landed takes in the completion data of an RDMA write. All that is believed is
// that a write which we had granted is complete, and that only from the one whom
// we had granted it, if it has room for a proof there or another way to say so.
func (c *core) landed(data uint64) {
	imm := framing.Immediate(data)
	if isProbe(imm.Lease()) {
		c.probeLanded(data)
		return
	}
	var p *peer // whose lease it is, or was: the slot that it took is free again
	if int(imm.Lease()) < len(c.lessees) {
		p = c.lessees[imm.Lease()]
	}
	if p == nil || p.err != nil || p.silent || p.proves && !framing.Proven(data, p.proofIn) {
		c.stats.WritesStray++
		return
	}
	if !p.useSlot(imm.Odd()) {
		return
	}
	c.grant(p)
	l := c.leases.Lookup(imm.Lease())
	if l == nil {
		c.stats.WritesStray++
		return
	}
	s := l.Owner.(*stream)
	in := s.inLease
	if s.gone() || in == nil || in.Lease != l {
		c.stats.WritesStray++
		return
	}
	w := in.slot(imm.Seq())
	if w == nil || w.landed {
		c.stats.WritesStray++
		return
	}
	w.landed, w.continues = true, imm.Continues()
	if err := s.advance(); err != nil {
		c.stats.Violations++
		c.fail(p, err)
	}
}

// slot is where the write with the given number is noted, nil if it cannot be
// in flight.
func (l *inLease) slot(seq uint16) *landing {
	if ahead := framing.SeqAfter(seq, l.seq); ahead < 0 || ahead >= framing.MaxWrites {
		return nil
	}
	return &l.writes[seq%framing.MaxWrites]
}

// announced takes a Large frame in.
func (s *stream) announced(h *framing.Header, payload []byte) error {
	var a framing.Large
	if err := a.Decode(payload); err != nil {
		return err
	}
	l := s.inLease
	if s.deaf() || l == nil || l.Index != a.Lease {
		s.p.c.stats.FramesStray++
		return nil
	}
	w := l.slot(a.Seq)
	if w == nil || w.announced {
		return fmt.Errorf("%w: write %d announced out of turn", errProtocol, a.Seq)
	}
	w.announced, w.pos, w.ring, w.n = true, h.Pos, a.Ring, a.Length
	if h.Flags&framing.FlagLanded != 0 {
		w.landed = true
	}
	return s.advance()
}

// takeLanded takes in the write that is next in its lease, if it has landed
// and is next in the stream.
func (s *stream) takeLanded() (bool, error) {
	l := s.inLease
	if l == nil || s.err != nil {
		return false, nil
	}
	w := &l.writes[l.seq%framing.MaxWrites]
	switch {
	case !w.landed || !w.announced && !w.continues:
		return false, nil
	case !w.announced:
		w.pos, w.ring, w.n = l.end, s.largeIn, l.last
		if l.last == 0 {
			return false, fmt.Errorf("%w: write continues nothing", errProtocol)
		}
	}
	if w.pos > s.rcvNxt {
		return false, nil
	}
	n, size := uint64(w.n), uint64(len(l.Ring.Bytes))
	switch off := framing.RingOffset(w.ring-l.base, size); {
	case w.pos != s.rcvNxt, w.ring != s.largeIn, n == 0, n > uint64(l.chunk), off+n > size,
		s.largeIn+n-s.largeRel > size, l.unread.len() == framing.MaxWrites, s.recv.ends() && w.pos+n > s.finPos:
		return false, fmt.Errorf("%w: write of %d bytes at %d does not fit the ring", errProtocol, n, w.ring)
	}
	l.last = w.n
	*w = landing{}
	l.seq++
	s.rcvNxt += n
	s.largeIn += n
	l.unread.add(s.largeIn)
	l.end = s.rcvNxt
	s.info.LargeIn += n
	s.p.c.stats.RDMAReceived += n
	s.p.c.stats.RDMAWritesReceived++
	l.touched = s.p.c.now().UnixNano()
	if s.reader == readerShut {
		l.read += n
		s.releaseRing()
	} else {
		s.segs.push(true, int(n))
		s.rd.signal()
	}
	return true, nil
}

// slice is the next bytes to be read from the ring, at most n, in one piece.
func (l *inLease) slice(n int) []byte {
	pos, size := l.read-l.base, uint64(len(l.Ring.Bytes))
	off := framing.RingOffset(pos, size)
	return l.Ring.Bytes[off : off+framing.RingSpan(pos, size, uint64(n))]
}

// consumeLarge notes that the next n bytes of the ring were read.
func (s *stream) consumeLarge(n int) {
	s.segs.pop(n)
	s.inLease.read += uint64(n)
	s.releaseRing()
}

// releaseRing gives the peer back what has been read, up to the first piece
// that the user still holds: releasing out of order would let the peer
// overwrite it.
func (s *stream) releaseRing() {
	l := s.inLease
	for len(l.lent) > 0 && l.lent[0].released {
		l.lent = l.lent[1:]
	}
	free := l.read
	if len(l.lent) > 0 {
		free = l.lent[0].ring
	}
	if free == s.largeRel {
		return
	}
	s.largeRel = free
	l.Release(free)
	l.unread.retire(free)
	if free-s.toldRing >= uint64(len(l.Ring.Bytes))/4 || l.unread.read-l.told >= framing.MaxWrites/4 {
		s.markDirty()
	}
	s.dropLease()
}

// unhold keeps the peer from waiting for room in the ring, or with a write that it
// holds back (see peer.holding), while the user waits for the rest of a message and
// holds what came before: nothing will be released before the rest is there.
func (s *stream) unhold() {
	l := s.inLease
	switch {
	case l == nil || len(l.lent) == 0:
	case s.largeIn-s.largeRel >= uint64(len(l.Ring.Bytes))/2:
		s.revoke() // frames need no room in the ring
	case s.largeRel != s.toldRing:
		s.markDirty()
	}
}

// dropLease frees the ring once the peer has returned it and everything in it
// has been read.
func (s *stream) dropLease() {
	l := s.inLease
	if l == nil || s.largeIn != s.largeRel || s.reader.copies() || len(l.lent) > 0 || !s.p.c.leases.Drop(l.Lease) {
		return
	}
	s.inLease = nil
	s.p.c.ringFreed = true
	s.p.trim()
}

// grantWaiting grants the leases that had to wait for memory, to those first
// that have waited longest. Once a peer has no memory left, its other streams need
// not look: there may be a thousand.
func (c *core) grantWaiting() {
	for _, p := range c.order {
		p.dry = false
	}
	queue := c.waiting
	c.waiting = queue[:0] // each adds itself at most
	for _, s := range queue {
		wants := s.claim == claimOpen && !s.gone()
		s.claim = claimNone
		switch {
		case !wants:
		case s.p.dry && s.inLease == nil && !s.deaf() && s.recv == recvOpen:
			s.wait()
		default:
			s.wanted()
		}
	}
	clear(queue[len(c.waiting):])
}

// wait queues a stream whose peer wants a lease that it cannot have yet.
func (s *stream) wait() {
	if s.claim == claimNone {
		s.p.c.waiting = append(s.p.c.waiting, s)
	}
	s.claim = claimOpen
}

// dropClaim notes that the peer wants no ring any more, or has one.
func (s *stream) dropClaim() {
	if s.claim == claimOpen {
		s.claim = claimStale
	}
}

// takeWay takes in how the peer tells that its writes have landed.
func (p *peer) takeWay(f framing.Flags) {
	p.silent = f&framing.FlagLanded != 0
	p.proves = f&framing.FlagProven != 0 && p.c.proven
}

// takeWant takes in a frame that asks for a ring.
func (s *stream) takeWant(h *framing.Header) {
	s.p.takeWay(h.Flags)
	s.wanted()
}

// wanted takes in that the peer has large data to send.
func (s *stream) wanted() {
	if s.deaf() || s.recv != recvOpen {
		s.dropClaim()
		return
	}
	if s.inLease != nil {
		s.wait()
		return
	}
	c, p := s.p.c, s.p
	ring := p.newRing()
	if ring == nil {
		p.dry = true
		s.wait()
		return // small data flows meanwhile
	}
	l, err := c.leases.Grant(ring, s)
	if err != nil {
		p.landing.Free(ring)
		p.trim()
		s.wait()
		return
	}
	s.dropClaim()
	c.landing = true
	for len(c.lessees) <= int(l.Index) {
		c.lessees = append(c.lessees, nil)
	}
	c.lessees[l.Index] = p
	l.Release(s.largeIn)
	s.inLease = &inLease{
		Lease: l, base: s.largeIn, read: s.largeIn, since: c.now().UnixNano(), touched: c.now().UnixNano(),
		chunk: uint32(min(chunkSize, max(stepSize, len(ring.Bytes)/4), len(ring.Bytes))),
	}
	p.shrink()
	f := ctlFrame{t: framing.TypeLease, stream: s.id, n: framing.LeaseSize}
	(&framing.Lease{
		Index: l.Index, Chunk: s.inLease.chunk, Size: uint64(len(ring.Bytes)), Addr: ring.Addr, Key: ring.Key,
	}).Encode(f.payload[:])
	p.control(f)
}

// newRing carves a ring out of the memory that is there, if there is room, and asks
// for more if there is not. Where that was refused, a smaller ring will do, or one that
// another stream gives back.
func (p *peer) newRing() *pool.Block {
	size := p.ringSize(p.landing.Stats().Blocks + 1)
	ring := p.landing.Get(size)
	if ring != nil || p.c.want(&p.supply) {
		return ring
	}
	for ; ring == nil && size/2 >= minRing; size /= 2 {
		ring = p.landing.Get(size / 2)
	}
	if ring == nil {
		p.c.stats.Stalls.Memory++
		p.c.starved = true
		p.revokeOldest()
	}
	return ring
}

// trim gives up memory of the peer's rings that is not in use, but for one slab.
func (p *peer) trim() { p.c.discard(p.landing.Trim(1)...) }

// ringSize is how large each of n rings of the peer is to be: all of them
// together are to stay in a cache.
func (p *peer) ringSize(n int) int {
	size := p.c.cfg.Ring
	for size > minRing && n*size > ringsTotal {
		size /= 2
	}
	return size
}

// shrink takes back the rings that have just become too large a share, for
// their streams to ask for smaller ones: conns that send alike get alike.
func (p *peer) shrink() {
	n := p.landing.Stats().Blocks
	size := p.ringSize(n)
	if size == p.ringSize(n-1) {
		return
	}
	for i := 0; i < len(p.list); i++ {
		if l := p.list[i].inLease; l != nil && len(l.Ring.Bytes) > size {
			p.list[i].revoke()
		}
	}
}

// revoke asks for a stream's lease back.
func (s *stream) revoke() {
	if s.inLease != nil && s.inLease.Revoke() {
		s.p.c.stats.LeasesRevoked++
		s.p.control(ctlFrame{t: framing.TypeRevoke, stream: s.id})
	}
}

// returned takes in that the peer has given its lease back.
func (s *stream) returned(final uint64) error {
	l := s.inLease
	if l == nil || s.recv == recvCut { // a Reset, which overtook it, has ended the lease
		return nil
	}
	if err := l.Return(final); err != nil {
		return fmt.Errorf("%w: %w", errProtocol, err)
	}
	s.dropLease()
	return nil
}

// leaseTurn is how long a lease may be used, at least, before another stream gets
// its memory. Handing it round faster would cost more than it carries.
const leaseTurn = 100 * time.Millisecond

// revokeOldest takes the lease back that has been idle longest, so that
// another stream can have its memory, unless one is already on its way back.
func (p *peer) revokeOldest() {
	var oldest *stream
	turn := p.c.now().Add(-leaseTurn).UnixNano()
	for _, s := range p.list {
		l := s.inLease
		switch {
		case l == nil:
		case l.State() == pool.LeaseRevoking:
			return
		case l.State() == pool.LeaseGranted && l.since <= turn &&
			(oldest == nil || l.touched < oldest.inLease.touched):
			oldest = s
		}
	}
	if oldest != nil {
		oldest.revoke()
	}
}

// reclaim takes back leases that have been idle for a while. It reports whether
// any lease is out or wanted.
func (p *peer) reclaim() (more bool) {
	for i := 0; i < len(p.list); i++ {
		s := p.list[i]
		if l := s.inLease; l != nil {
			more = true
			idle := s.largeIn == s.largeRel && p.c.now().UnixNano()-l.touched > int64(choreTime)
			if idle || 4*len(l.Ring.Bytes) <= p.ringSize(p.landing.Stats().Blocks) { // there is room for a larger one
				s.revoke()
			}
		}
		more = more || s.claim == claimOpen
	}
	if !more && p.landing != nil {
		p.c.discard(p.landing.Trim(0)...) // idle conns own no registered memory
	}
	return more
}
