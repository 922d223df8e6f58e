package engine

import (
	"container/list"
	"errors"
	"math/bits"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/pool"
)

// Landing rings, and how streams get them. A peer asks for a ring for a stream, is granted one
// as soon as there is memory, and gives it back when it is told to. The rings of a peer lie in
// slabs of their own. A ring that is not used for a while is taken back, so that idle conns own
// no memory.
//
//	memory                     rings                               a stream without a ring
//	plenty                     grow, as far as configured (see     waits until a slab is
//	                           grow.go); those of one peer fit     mapped
//	                           caches together
//	short: a slab was refused  get smaller, down to MinRing; the   waits until others have
//	lately                     one that was used longest ago is    made room; small data
//	                           taken back, whichever peer has it   flows meanwhile
//
// Slabs leave an eighth of the budget to conns and peers that are still to come. The other
// endpoints that share the budget hear of a shortage, too: over shared memory each peer has an
// endpoint of its own.

// rings is the state of the landing rings of all peers of an endpoint.
type rings struct {
	used      list.List // streams whose rings can be asked for, the one that was used last at the end
	asked     int       // rings that were asked for in this turn and are not back yet
	turn      time.Time // when this turn began
	claims    int       // streams that wait for a ring
	most      int       // how large a ring may be, in bytes
	halved    time.Time // when most was last halved, or doubled again
	refused   []*peer   // peers that were refused memory
	shortages uint64    // how many the budget had had when reclaim looked last
}

// claimState says whether the peer wants a ring for a stream but cannot have it yet.
type claimState uint8

const (
	claimNone  claimState = iota
	claimLater            // to be claimed once the ring that it has is back
	claimOpen             // to be granted as soon as there is memory: the stream is in peer.claims
)

// recallRings is how many rings are asked back at a time.
const recallRings = 2

// leaseTurn is how long a lease may at least be used before another stream gets its
// memory. Passing the memory round faster would cost more than it brings.
const leaseTurn = 100 * time.Millisecond

// wanted takes in that the peer has large data to send.
func (s *stream) wanted() {
	switch {
	case s.discarding() || s.recv != recvOpen:
		s.dropClaim()
	case s.claim == claimOpen:
	case s.inLease != nil:
		s.claim = claimLater
	case s.p.claims.Len() > 0 || !s.grantRing():
		s.makeClaim()
	default:
		s.claim = claimNone
	}
}

func (s *stream) makeClaim() {
	s.claim, s.claimAt = claimOpen, s.p.claims.PushBack(s)
	s.p.c.rings.claims++
}

// dropClaim notes that the peer no longer wants a ring for the stream, or has one.
func (s *stream) dropClaim() {
	if s.claim == claimOpen {
		s.p.claims.Remove(s.claimAt)
		s.p.c.rings.claims--
	}
	s.claim, s.claimAt = claimNone, nil
}

// serveClaims grants rings to the peer's streams as far as its memory goes.
func (p *peer) serveClaims() {
	for p.err == nil && p.claims.Len() > 0 {
		s := p.claims.Front().Value.(*stream)
		p.c.stats.steps++
		if !s.discarding() && s.recv == recvOpen && !s.grantRing() {
			return
		}
		s.dropClaim()
	}
}

// grantRing leases the stream a ring, if there is memory.
func (s *stream) grantRing() bool {
	c, p := s.p.c, s.p
	if s.inLease != nil && !s.mayGrow() {
		return true // it is too late for a second one
	}
	ring := p.newRing(s.nextSize())
	if ring == nil {
		return false
	}
	in := &inLease{lease: lease{Ring: ring, stream: s}, chunk: s.mostWrite(len(ring.Bytes))}
	if !c.leases.grant(in) {
		p.landing.Free(ring)
		p.trim()
		return false
	}
	if s.inLease == nil {
		s.begin(in)
		if s.checks { // it is not asked back
			s.leaseEnds()
		}
		p.ringed++
		p.shrink()
	} else {
		s.leaseEnds()
		s.nextLease = in
	}
	f := ctlFrame{t: framing.TypeLease, stream: s.id, n: framing.LeaseSize}
	(&framing.Lease{
		Index: in.Index, Chunk: in.chunk, Size: uint64(len(ring.Bytes)), Remote: p.remote(ring),
	}).Encode(f.payload[:])
	p.control(f)
	s.promise()
	return true
}

// remote says how the peer finds the block.
func (p *peer) remote(b *pool.Block) framing.Remote {
	if p.c.rule == byCopy {
		return framing.Remote{Addr: b.Offset, Key: b.Shared.Inode, FD: b.Shared.FD}
	}
	return framing.Remote{Addr: b.Addr, Key: b.Key}
}

// newRing carves a ring out of the peer's memory. If there is no room, it asks for more memory
// and returns nil. If that was refused lately, a smaller ring will do; without room for that
// either, the stream waits for what others give back.
func (p *peer) newRing(size int) *pool.Block {
	ring := p.landing.Get(size)
	if ring != nil || p.c.want(&p.supply) {
		return ring
	}
	for ; ring == nil && size/2 >= MinRing; size /= 2 {
		ring = p.landing.Get(size / 2)
	}
	if ring == nil {
		p.c.stats.Stalls.Memory++
	}
	return ring
}

// mostWrite is the longest write to a ring of that many bytes.
func (s *stream) mostWrite(ring int) uint32 {
	if s.checks {
		return uint32(ring / 2)
	}
	return uint32(min(chunkSize, max(stepSize, ring/4), ring))
}

// nextSize is how large the stream's next ring is to be, in bytes.
func (s *stream) nextSize() int {
	if s.checks {
		return s.p.c.checkRing()
	}
	if s.inLease == nil {
		return min(s.p.ringSize(s.p.ringed+1), s.p.c.cfg.first)
	}
	return s.p.ringSize(s.p.ringed) // the first one goes
}

// ringSize is how large each ring may be, in bytes, if the peer has n of them: all
// together are to stay in a cache.
func (p *peer) ringSize(n int) int {
	size := p.c.rings.most
	for size > MinRing && n*size > ringsTotal {
		size /= 2
	}
	return size
}

// slabSize is how much landing memory is mapped for the peer next, in bytes: no more than the
// streams that want a ring need, since many peers have a single conn. The first of them needs ring bytes.
func (p *peer) slabSize(ring int) int {
	n := p.claims.Len()
	size := min(p.c.cfg.first, p.ringSize(p.ringed+n))
	return max(ring, min(landingSlab, size<<bits.Len(uint(n-1))))
}

// orderLanding has landing memory mapped for the peer.
func (p *peer) orderLanding() (work, done func()) {
	if p.err != nil || p.claims.Len() == 0 {
		return nil, nil
	}
	s := p.claims.Front().Value.(*stream)
	ring, grows := s.nextSize(), s.inLease != nil
	size := p.slabSize(ring)
	var slab *pool.Slab
	return func() { slab = p.c.mapLanding(p.landing, size, ring, grows) }, func() { p.c.suppliedLanding(p, slab, ring) }
}

// mapLanding maps a slab of size bytes, or a smaller one if there is no room, but none that
// leaves less than an eighth of the budget. If it gets none, or one too small for a ring, that
// is a shortage, unless a ring was only to grow. It is called without the lock, and reads nothing
// that changes.
func (c *core) mapLanding(mem *pool.Arena, size, ring int, grows bool) (slab *pool.Slab) {
	for n := size; slab == nil && n >= min(MinRing, ring); n /= 2 {
		if c.leaves(8, n) {
			var err error
			if slab, err = mem.Map(n); err != nil && c.rule == byCopy && !errors.Is(err, pool.ErrBudget) {
				return nil // descriptors are short, for example: others' rings have no part in that
			}
		}
	}
	if !grows && tooSmall(slab, ring) {
		c.cfg.Budget.RunShort()
	}
	return slab
}

func tooSmall(slab *pool.Slab, ring int) bool { return slab == nil || len(slab.Bytes()) < ring }

// suppliedLanding takes in what has become of an order for a slab in which a ring of that many bytes fits.
func (c *core) suppliedLanding(p *peer, slab *pool.Slab, ring int) {
	if p.err != nil {
		if slab != nil {
			c.discard(slab)
		}
		return
	}
	if slab != nil {
		p.landing.Add(slab)
	}
	if tooSmall(slab, ring) {
		p.supply.state = refused
		c.rings.refused = append(c.rings.refused, p)
		if p.growNot(); p.claims.Len() > 0 {
			c.makeRings()
		}
	}
	p.serveClaims()
	if p.landing.Stats().Blocks == 0 {
		c.discard(p.landing.Trim(0)...) // nobody wants the memory any more
	}
}

// makeRings asks for rings back when memory was refused, those that were used longest ago
// first. If even the first was used just now, all are in use, and rings have to be smaller for
// more of them to fit.
func (c *core) makeRings() {
	r, now := &c.rings, c.now()
	turn := now.Add(-leaseTurn).UnixNano()
	if now.Sub(r.turn) >= leaseTurn { // a peer that does not answer holds nobody up
		r.turn, r.asked = now, 0
	}
	for range recallRings {
		if r.used.Len() == 0 || r.asked > r.claims+4*recallRings {
			return
		}
		s := r.used.Front().Value.(*stream)
		l := s.inLease
		if l.touched > turn && r.most > MinRing && now.Sub(r.halved) >= leaseTurn {
			r.most, r.halved = r.most/2, now
		}
		if l.since > turn && len(l.Ring.Bytes) <= r.most {
			return
		}
		c.stats.steps++
		r.asked++
		s.revoke()
	}
}

// askRefused has up to n of the peers that were refused memory ask again, now that some is
// free.
func (c *core) askRefused(n int) {
	n = min(n, len(c.rings.refused))
	for _, p := range c.rings.refused[:n] {
		p.supply.again()
		if p.err == nil && p.claims.Len() > 0 {
			c.want(&p.supply)
		}
	}
	c.rings.refused = c.rings.refused[n:]
}

// revoke asks for the stream's lease back, if it has one that can be asked for.
func (s *stream) revoke() {
	l := s.inLease
	if l != nil && l.state == leaseGranted && s.nextLease == nil && !s.checks && s.p.err == nil && !s.gone() {
		l.state = leaseRevoking
		s.p.c.stats.LeasesRevoked++
		s.dropClaim() // for a larger one
		s.leaseEnds()
		s.p.control(ctlFrame{t: framing.TypeRevoke, stream: s.id})
	}
}

// leaseEnds takes the stream's ring out of those that can be asked for: it was asked for, or is to be
// replaced, or the peer writes no more. What the peer has written may still be unread.
func (s *stream) leaseEnds() { s.p.c.rings.used.Remove(s.inLease.use) }

// leaseOver notes that the stream's ring is free, and lets streams of the peer that wait for one try.
func (s *stream) leaseOver() {
	p := s.p
	s.leaseEnds()
	s.inLease = nil
	p.ringed--
	if s.checks {
		p.keepCheckRing() // before a conn can get it
	}
	p.trim()
	if s.claim == claimLater {
		s.makeClaim()
	}
	if p.claims.Len() > 0 {
		p.c.touch(p)
	}
}

// trim gives up the peer's landing memory that is not in use, except for one slab as long as
// memory is plentiful.
func (p *peer) trim() {
	keep := 1
	if p.c.rings.most < p.c.cfg.Ring || len(p.c.rings.refused) > 0 {
		keep = 0
	}
	p.c.discard(p.landing.Trim(keep)...)
}

// shrink takes back the rings that have just become too large a share. Their streams
// then ask for smaller ones: conns that send alike get rings alike.
func (p *peer) shrink() {
	n := p.ringed
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

// reclaim is one of the chores. It takes back leases that have been idle for a while, and
// has rings grow that could not before.
func (c *core) reclaim() {
	r, now := &c.rings, c.now()
	c.askRefused(len(r.refused))
	if n := c.cfg.Budget.Shortages(); n != r.shortages {
		r.shortages = n
		c.makeRings()
	}
	if b := c.cfg.Budget.Stats(); r.claims == 0 && r.most < c.cfg.Ring && now.Sub(r.halved) > 2*choreTime && b.Used < b.Limit/2 {
		r.most, r.halved = 2*r.most, now
	}
	for e := r.used.Front(); e != nil; {
		s := e.Value.(*stream)
		e = e.Next()
		l := s.inLease
		switch idle := s.largeIn == s.largeRel && now.UnixNano()-l.touched > int64(choreTime); {
		case idle:
			s.revoke()
		case l.full: // and could not grow then
			s.growRing()
		}
	}
	for _, p := range c.order { // idle conns own no registered memory
		if m := p.landing.Stats(); m.Slabs > 0 && m.Blocks == 0 && p.check == checkPassed { // before that its ring is still to be used
			c.discard(p.landing.Trim(0)...)
			c.touch(p) // there may be room for larger rings now
		}
	}
}
