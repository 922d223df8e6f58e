package engine

import (
	"errors"
	"time"

	"github.com/seed202c38ff/fabricnet/pool"
)

// Memory for the fabric is mapped, faulted in, registered and given back without the
// endpoint's lock: for a large piece that takes half a second, in which all conns of the
// endpoint would stand still. So the core notes what it lacks and what it is done with,
// and the endpoint carries that out, one order after the other, in a goroutine that runs
// while there are orders. The budget is charged before anything is mapped.
//
//	who lacks     what                   and meanwhile                who wakes when it comes
//	a writer      staging memory         waits for a chunk; sends     writers in peer.blocked; if there were
//	                                     frames if there are none     no chunks, all that have a ring
//	a stream      a slab for landing     waits in peer.claims;        peer.claims
//	              rings of its peer      small data flows
//	a stream      its ring, mapped here  sends frames                 mappedSlab.waits
//	all peers     send slots instead of  make do with those that      peers that wait for a slot
//	              those of the dead      are left
//	a busy peer   receive slots          makes do with its share      peers that have too few
//
// Once the budget has refused, writers make do with the chunks that there are, and streams
// with smaller rings, or with rings that others give back. chores lets them ask again.
//
// AllocBuffer and newPeer, which wait for nothing else, do their own mapping: see
// unlocked. Reassembly rings are not faulted in: see reassembly.go.

// supply is the state of memory of one kind. The zero value lacks nothing.
type supply struct {
	state supplyState
	peer  *peer       // the peer whose memory it is, or nil
	maps  *mappedSlab // the peer's own slab that is to be mapped here, or nil for our landing memory
	slots *pool.Slots // the slots that it is for, or nil
}

// supplyState changes as follows:
//
//	from      by                                   to
//	enough    want                                 wanted
//	wanted    nextOrder                            coming
//	          nextOrder, if no more is needed      enough
//	coming    supplied, with a slab                enough
//	          supplied, without one, or with one   refused
//	          that is too small
//	refused   askAgain, by chores; askRefused      enough
type supplyState uint8

const (
	enough  supplyState = iota // nobody has asked since the last came
	wanted                     // listed in core.needs
	coming                     // part of an order that is being carried out
	refused                    // there is no room in the budget, for now
)

// want asks for more. It reports false if that was refused recently.
func (c *core) want(s *supply) bool {
	if s.state == enough {
		s.state = wanted
		c.needs.push(s)
	}
	return s.state != refused
}

// wantStage asks for staging memory, unless there is as much as there may be.
func (c *core) wantStage() {
	if n := c.stage.Len(); n < c.most(&c.staging) && (n < stageFew+c.dead.chunks || c.mayStageMuch()) {
		c.want(&c.staging)
	}
}

// mayStageMuch reports whether the budget has room for more than stageFew staging chunks.
func (c *core) mayStageMuch() bool { return c.leaves(2, stageChunks*stepSize) }

// stageOrder is how many staging chunks to map next.
func (c *core) stageOrder() int {
	n := stageFew
	if c.mayStageMuch() {
		n = stageChunks
	}
	return max(1, min(n, c.most(&c.staging)-c.stage.Len()))
}

// most is how many slots there may be. What dead peers hold of them is made up for.
func (c *core) most(s *supply) int {
	switch s.slots {
	case c.stage:
		return min(stageMax, 2*c.depth) + c.dead.chunks
	case c.rx:
		return c.mostRecvs()
	}
	return c.sends + c.reserved() - c.fewPeers() + c.dead.frames
}

// reserved is how many peers are to have a send slot each besides those for all: the peers that
// are there, and the next few. See mostHeld.
func (c *core) reserved() int {
	more := len(c.order) - c.fewPeers()
	if more <= 0 || c.attr.PerPeer {
		return c.fewPeers()
	}
	return c.fewPeers() + (more+slotStep-1)/slotStep*slotStep
}

// fewPeers is how many peers need no send slots besides those for all.
func (c *core) fewPeers() int { return c.sends / 16 }

// wantSends asks for send slots if there are fewer than there should be.
func (c *core) wantSends() {
	if c.tx.Len() < c.most(&c.sending) {
		c.want(&c.sending)
	}
}

// askAgain lets those that were refused ask again. For landing memory, see reclaim.
func (c *core) askAgain() {
	c.staging.again()
	c.sending.again()
	c.receiving.again()
}

func (s *supply) again() {
	if s.state == refused {
		s.state = enough
	}
}

// discard notes slabs that nothing uses any more.
func (c *core) discard(slabs ...*pool.Slab) { c.waste = append(c.waste, slabs...) }

// order is what is to be done without the lock.
type order struct {
	waste []*pool.Slab // to be closed; then those that could not be
	of    *supply      // for which memory is to be mapped, or nil
	slots int          // how many slots, if it is for slots
	size  int          // how many bytes, if it is landing memory
	ring  int          // how many bytes are enough for a ring, at least
	grows bool         // it is for a ring that grows
	freed int          // slabs of waste that were closed
	slab  *pool.Slab
	err   error // why there is no slab, if it is for a peer's memory
}

// hasOrders reports whether nextOrder has something to do.
func (c *core) hasOrders() bool { return c.needs.len()+len(c.waste) > 0 && c.err == nil }

// nextOrder is what is to be done next, nil if there is nothing. A broken endpoint
// needs nothing, and shutdown closes what it has.
func (c *core) nextOrder() *order {
	if !c.hasOrders() {
		return nil
	}
	o := &order{waste: c.waste}
	c.waste = nil
	for o.of == nil && c.needs.len() > 0 {
		if s := c.needs.pop(); s.peer == nil || s.peer.err == nil {
			o.of, s.state, o.slots = s, coming, stageChunks
			switch {
			case s.maps != nil:
			case s.peer != nil:
				o.ring, o.grows = s.peer.wantedRing()
				o.size = s.peer.slabSize(o.ring)
			case s.slots == c.stage:
				o.slots = c.stageOrder()
			case s.slots == c.tx:
				o.slots = c.most(s) - s.slots.Len()
			case s.slots == c.rx:
				o.slots = min(c.most(s)-s.slots.Len(), max(slotStep, s.slots.Len()/2))
			}
			if o.slots <= 0 { // the peers that wanted them have gone
				o.of, s.state = nil, enough
			}
		}
	}
	return o
}

// carryOut is called without the lock, so it looks at nothing that changes.
func (o *order) carryOut(c *core) {
	n := len(o.waste)
	o.waste, _ = pool.CloseSlabs(o.waste) // makes room for the rest
	o.freed = n - len(o.waste)
	switch {
	case o.of == nil:
	case o.of.maps != nil:
		o.slab, o.err = o.of.peer.cfg.Memory(o.of.maps.name)
	case o.of.peer != nil:
		o.slab = c.mapLanding(o.of.peer.landing, o.size, o.ring, o.grows)
	default:
		for o.slots > 0 && o.slab == nil {
			if o.of.slots != c.stage || c.leaves(8, o.slots*stepSize) {
				o.slab, _ = o.of.slots.Map(o.slots)
			}
			if o.slab == nil {
				o.slots /= 4
			}
		}
		if o.slab == nil && o.of.slots == c.stage { // rings are of no use without it: they make room
			c.cfg.Budget.RunShort()
		}
	}
}

// leaves reports whether 1/part of the budget is left once n more bytes are mapped. What
// streams need leaves an eighth for new conns and peers. leaves may be called without the lock.
func (c *core) leaves(part int64, n int) bool {
	b := c.cfg.Budget.Stats()
	return b.Limit-b.Used-int64(n) >= b.Limit/part
}

// supplied takes in the result of an order.
func (c *core) supplied(o *order) {
	c.leftover = append(c.leftover, o.waste...)
	c.askRefused(2 * o.freed)
	s := o.of
	if s == nil {
		return
	}
	s.state = enough
	if s.maps != nil {
		c.suppliedMapped(s.maps, o.slab, o.err)
		return
	}
	if o.slab == nil || len(o.slab.Bytes()) < o.ring {
		s.state = refused
	}
	if s.peer == nil {
		c.suppliedSlots(s, o)
	} else {
		c.suppliedLanding(s.peer, o.slab)
	}
}

func (c *core) suppliedSlots(s *supply, o *order) {
	switch {
	case o.slab == nil:
		return // whatever waits for a slot has to wait for an existing one
	case c.err != nil || s.slots.Len() >= c.most(s):
		c.discard(o.slab)
		return
	}
	first := s.slots.Len() == 0
	if s.slots == c.rx { // makeRoom may have mapped some meanwhile, and the fabric takes only so many
		o.slots = min(o.slots, c.most(s)-c.rx.Len())
	}
	s.slots.Add(o.slab, o.slots)
	c.freed = true
	if s.slots == c.stage { // so that trimStage leaves it to the writers for a while
		c.stageUsed = true
	}
	if s.slots == c.rx {
		c.postFree()
	}
	if s.slots == c.tx && c.tx.Len() < c.most(s) { // more peers have died meanwhile
		c.want(s)
	}
	if first {
		c.wakeStagers()
	}
}

// wakeStagers is called when there is staging memory at last, or none any more. Without it, writers
// that have a ring wait for the window, to send frames; with it, they wait for the ring. See lacks.
func (c *core) wakeStagers() {
	for _, p := range c.order {
		for _, s := range p.list {
			if s.outLease != nil {
				s.wr.signal()
			}
		}
	}
}

// supply carries out orders until there are none.
func (e *Endpoint) supply() {
	e.enter()
	for o := e.core.nextOrder(); o != nil; o = e.core.nextOrder() {
		e.unlocked(func() { o.carryOut(e.core) })
		e.core.supplied(o)
	}
	e.supplying = false
	e.tellMapped() // others may have done what this was started for: see awaitSupply
	e.leave()
}

// unlocked calls f, which maps or unmaps memory, without the lock. The caller holds the
// lock, and much can have happened when unlocked returns. Close waits for it.
func (e *Endpoint) unlocked(f func()) {
	e.core.mapping++
	e.leave()
	f()
	e.enter()
	e.core.mapping--
	e.tellMapped()
}

// unmap closes core.waste in the caller's goroutine. It reports false if there was nothing to do.
func (e *Endpoint) unmap() (done bool) {
	c := e.core
	if len(c.waste) == 0 || c.err != nil {
		return false
	}
	o := &order{waste: c.waste}
	c.waste = nil
	e.unlocked(func() { o.carryOut(c) })
	c.supplied(o)
	return true
}

// mapSlab has f map a slab, in the caller's goroutine. If the budget has no room, it tries
// again once the memory that this endpoint is done with, or is about to be, is unmapped.
func (e *Endpoint) mapSlab(f func() (*pool.Slab, error)) (slab *pool.Slab, err error) {
	c := e.core
	for c.err == nil {
		e.unlocked(func() { slab, err = f() })
		if !errors.Is(err, pool.ErrBudget) {
			return slab, err
		}
		c.discard(c.lend.Trim(0)...)
		if !e.unmap() && !e.awaitSupply() {
			return nil, err
		}
	}
	return nil, c.err
}

// awaitSupply waits for what others are mapping or unmapping, and reports whether there
// was anything.
func (e *Endpoint) awaitSupply() bool {
	if !e.supplying && e.core.mapping == 0 || e.pause != nil {
		return false
	}
	e.awaitMapping()
	e.core.at = time.Time{}
	return true
}

// awaitMapping waits, without the lock, until core.mapping has gone down or supply has ended. It is no
// sync.Cond, which a goroutine in a bubble of testing/synctest could not wait for: this channel may be older.
func (e *Endpoint) awaitMapping() {
	e.mapWaits++
	e.mu.Unlock()
	<-e.mapped
	e.mu.Lock()
	e.mapWaits--
	e.tellMapped()
}

// tellMapped wakes one of those that are in awaitMapping, which then wakes the next one.
func (e *Endpoint) tellMapped() {
	if e.mapWaits > 0 {
		select {
		case e.mapped <- struct{}{}:
		default:
		}
	}
}

// giveBack closes a slab that came too late, in the caller's goroutine.
func (e *Endpoint) giveBack(slab *pool.Slab) {
	e.core.discard(slab)
	e.unmap() // or shutdown does
}
