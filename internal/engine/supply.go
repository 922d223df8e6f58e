package engine

import (
	"errors"
	"time"

	"github.com/seed202c38ff/fabricnet/pool"
)

// Memory for the fabric is mapped, faulted in, registered and given back without the
// endpoint's lock: for a large piece that takes half a second, and all conns of the
// endpoint would stand still. So the core notes what it lacks and what it is done with,
// and the endpoint carries that out, one order after the other, in a goroutine that is
// there as long as there are any. The budget is charged before anything is mapped.
//
//	lacks              what                    does meanwhile                  is woken when it comes
//	a writer           staging memory          waits for a chunk; sends        writers in peer.blocked; where there
//	                                           frames while there are none     were no chunks, all that have a ring
//	a stream           a slab for landing      waits in peer.claims; small     peer.claims
//	                   rings of its peer       data flows
//	a stream           its ring, mapped here   sends frames                    mappedSlab.waits
//	all peers          send slots in place     make do with those that are     who waits for a slot
//	                   of those of the dead    left
//	a busy peer        receive slots           makes do with its share         peers that have too few
//
// Once the budget has refused, writers make do with the chunks that there are, streams
// with smaller rings or others' that come back; chores has them ask again.
//
// AllocBuffer and newPeer, which wait for nothing else, do their own mapping: see
// unlocked. Reassembly rings are not faulted in: see reassembly.go.

// supply is how it stands with memory of one kind. The zero value lacks nothing.
type supply struct {
	state supplyState
	peer  *peer       // whose landing memory it is, or nil
	maps  *mappedSlab // that peer's memory, to be mapped here, or nil
	slots *pool.Slots // or what slots
}

// supplyState changes as follows:
//
//	from      by                        to
//	enough    want                      wanted
//	wanted    nextOrder                 coming
//	coming    supplied, with a slab     enough
//	          without, or too small a one refused
//	refused   askAgain, by chores       enough
type supplyState uint8

const (
	enough  supplyState = iota // nobody has asked since the last came
	wanted                     // listed in core.needs
	coming                     // part of an order that is carried out
	refused                    // there is no room in the budget, for now
)

// want asks for more. It reports false if that was refused lately.
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

// mayStageMuch reports that there is memory for more than stageFew chunks of staging memory.
func (c *core) mayStageMuch() bool { return c.leaves(2, stageChunks*stepSize) }

// stageOrder is how many chunks of it to map next.
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

// reserved is for how many peers there is to be a send slot each, besides those for all: for
// those that are there, and the next few. See mostHeld.
func (c *core) reserved() int {
	more := len(c.order) - c.fewPeers()
	if more <= 0 || c.attr.PerPeer {
		return c.fewPeers()
	}
	return c.fewPeers() + (more+slotStep-1)/slotStep*slotStep
}

// fewPeers is how many need no send slots besides those for all.
func (c *core) fewPeers() int { return c.sends / 16 }

// wantSends asks for send slots, if there are fewer than there are to be.
func (c *core) wantSends() {
	if c.tx.Len() < c.most(&c.sending) {
		c.want(&c.sending)
	}
}

// askAgain has those ask again that were refused. See reclaim for landing memory.
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
	waste []*pool.Slab // to be closed; those that could not be are left
	of    *supply      // to be mapped, or nil
	slots int          // in slab
	size  int          // of it, if it is landing memory
	ring  int          // at least, to be enough for one
	freed int          // of waste, slabs that were closed
	slab  *pool.Slab
	err   error // why there is none, for a peer's memory
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
				o.size, o.ring = s.peer.slabSize(), s.peer.ringSize(s.peer.landing.Stats().Blocks+1)
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

// carryOut is called without the lock. It looks at nothing that changes.
func (o *order) carryOut(c *core) {
	n := len(o.waste)
	o.waste, _ = pool.CloseSlabs(o.waste) // makes room for the rest
	o.freed = n - len(o.waste)
	switch {
	case o.of == nil:
	case o.of.maps != nil:
		o.slab, o.err = o.of.peer.cfg.Memory(o.of.maps.name)
	case o.of.peer != nil:
		o.slab = c.mapLanding(o.of.peer.landing, o.size, o.ring)
	default:
		for o.slots > 0 && o.slab == nil {
			if o.of.slots != c.stage || c.leaves(8, o.slots*stepSize) {
				o.slab, _ = o.of.slots.Map(o.slots)
			}
			if o.slab == nil {
				o.slots /= 4
			}
		}
		if o.slab == nil && o.of.slots == c.stage { // rings are of no use then: they make room
			c.cfg.Budget.RunShort()
		}
	}
}

// leaves reports whether a part of the budget is left once n bytes more are mapped. What
// streams need leaves an eighth, for conns and peers that come. It may be called without the
// lock.
func (c *core) leaves(part int64, n int) bool {
	b := c.cfg.Budget.Stats()
	return b.Limit-b.Used-int64(n) >= b.Limit/part
}

// supplied takes in what has become of an order.
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
		return // who waits for a slot waits for those that there are
	case c.err != nil || s.slots.Len() >= c.most(s):
		c.discard(o.slab)
		return
	}
	first := s.slots.Len() == 0
	if s.slots == c.rx { // makeRoom may have mapped some meanwhile, and the fabric takes no more
		o.slots = min(o.slots, c.most(s)-c.rx.Len())
	}
	s.slots.Add(o.slab, o.slots)
	c.freed = true
	if s.slots == c.stage { // trimStage leaves it to its writers for a while
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

// wakeStagers is for when there is staging memory, or none any more: without, writers that
// have a ring wait for the window of frames, and else for the ring. See lacks.
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
	e.mapped.Broadcast() // others may have done what this was started for: see awaitSupply
	e.leave()
}

// unlocked calls f, which maps or unmaps memory, without the lock, which the caller
// holds. Much can have happened when it returns. Close waits for it.
func (e *Endpoint) unlocked(f func()) {
	e.core.mapping++
	e.leave()
	f()
	e.enter()
	e.core.mapping--
	e.mapped.Broadcast()
}

// unmap closes what is waste, in the caller's goroutine.
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

// mapSlab has f map a slab, in the caller's goroutine. Where the budget has no room,
// that is tried again once what this endpoint is done with, or about to be, is unmapped.
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

// awaitSupply waits for what is being mapped or unmapped by others, and reports whether
// there was anything.
func (e *Endpoint) awaitSupply() bool {
	if !e.supplying && e.core.mapping == 0 || e.pause != nil {
		return false
	}
	e.mapped.Wait()
	e.core.at = time.Time{}
	return true
}

// giveBack closes what came too late, in the caller's goroutine.
func (e *Endpoint) giveBack(slab *pool.Slab) {
	e.core.discard(slab)
	e.unmap() // or shutdown does
}
