package engine

import (
	"errors"
	"fmt"
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
//	a stream      its ring, mapped here  sends frames                 stream.offer
//	all peers     send slots that a      have fewer                   nobody
//	              dead one holds
//
// The memory of dead peers is given back likewise: see quarantine.go.
//
// Once the budget has refused, writers make do with the chunks that there are, and streams
// with smaller rings, or with rings that others give back. chores lets them ask again.
//
// AllocBuffer and newPeer, which wait for nothing else, do their own mapping: see
// unlocked. Reassembly rings are not faulted in: see reassembly.go.

// supply is the state of memory of one kind.
type supply struct {
	state supplyState
	// begin is called when it is the supply's turn. work maps memory, and is called without the lock, so it
	// looks at nothing that changes. done takes in the result, and may set the state to refused. If work is
	// nil, no more is needed.
	begin func() (work, done func())
}

// supplyState changes as follows:
//
//	from     by                                  to
//	enough   want                                asked
//	asked    supplied; nextOrder, if no more is  enough
//	         needed
//	         done, without a slab, or with one   refused
//	         that is too small
//	refused  again, by chores and askRefused     enough
type supplyState uint8

const (
	enough  supplyState = iota // nobody has asked since the last came
	asked                      // listed in core.needs, or part of an order that is being carried out
	refused                    // there is no room in the budget, for now
)

// want asks for more. It reports false if that was refused recently.
func (c *core) want(s *supply) bool {
	if s.state == enough {
		s.state = asked
		c.needs.push(s)
	}
	return s.state != refused
}

// wantStage asks for staging memory, unless there is as much as there may be.
func (c *core) wantStage() {
	if n := c.stage.Len(); n < c.mostStage() && (n < stageFew+c.deadStage || c.mayStageMuch()) {
		c.want(&c.staging)
	}
}

// mayStageMuch reports whether the budget has room for more than stageFew staging chunks.
func (c *core) mayStageMuch() bool { return c.leaves(2, stageChunks*stepSize) }

// prepareStage maps the staging chunks of a path check, unless there are some. The caller holds the lock, which
// is given up for that.
func (e *Endpoint) prepareStage() error {
	c := e.core
	if c.rule == byCopy || c.rule == byNothing || c.stage.Len() > 0 {
		return c.err
	}
	if err := e.mapSlots(c.stage, checkChunks); err != nil {
		return fmt.Errorf("%w: no staging memory for the path check", err)
	}
	c.freed = true
	c.wakeStagers()
	return nil
}

// orderStage has staging chunks mapped.
func (c *core) orderStage() (work, done func()) {
	n := stageFew
	if c.mayStageMuch() {
		n = stageChunks
	}
	if n = min(n, c.mostStage()-c.stage.Len()); n <= 0 {
		return nil, nil
	}
	var slab *pool.Slab
	work = func() {
		for ; n > 0; n /= 4 {
			if c.leaves(8, n*stepSize) {
				if slab, _ = c.stage.Map(n); slab != nil {
					return
				}
			}
		}
		c.cfg.Budget.RunShort() // rings are of no use without it: they make room
	}
	return work, func() {
		switch {
		case slab == nil:
			c.staging.state = refused // whatever waits for a chunk has to wait for an existing one
		case c.err != nil || c.stage.Len() >= c.mostStage():
			c.discard(slab)
		default:
			first := !c.hasStage()
			c.stage.Add(slab, n)
			c.freed, c.stageUsed = true, true // trimStage leaves it to the writers for a while
			if first {
				c.wakeStagers()
			}
		}
	}
}

// orderSends has send slots mapped for those that dead peers hold. Without memory, the next newcomer does.
func (c *core) orderSends() (work, done func()) {
	n := c.sendsNeeded()
	if n <= 0 {
		return nil, nil
	}
	var slab *pool.Slab
	return func() { slab, _ = c.tx.Map(n) }, func() {
		switch {
		case slab == nil:
		case c.err != nil:
			c.discard(slab)
		default:
			c.tx.Add(slab, n)
		}
	}
}

// mostStage is how many staging chunks there may be. Those that dead peers hold are made up for.
func (c *core) mostStage() int { return min(stageMax, 2*c.attr.TxDepth) + c.deadStage }

func (s *supply) again() {
	if s.state == refused {
		s.state = enough
	}
}

// discard notes slabs that nothing uses any more.
func (c *core) discard(slabs ...*pool.Slab) { c.waste = append(c.waste, slabs...) }

// order is what is to be done without the lock.
type order struct {
	waste      []*pool.Slab // to be closed; then those that could not be
	freed      int          // slabs of waste that were closed
	of         *supply      // for which memory is to be mapped, or nil
	work, done func()       // see supply
}

// hasOrders reports whether nextOrder has something to do.
func (c *core) hasOrders() bool { return c.needs.len()+len(c.waste) > 0 && c.err == nil }

// nextOrder is what is to be done next, nil if there is nothing. A broken endpoint
// needs nothing, and shutdown closes what it has.
func (c *core) nextOrder() *order {
	if !c.hasOrders() {
		return nil
	}
	o := c.wasteOrder()
	for o.work == nil && c.needs.len() > 0 {
		o.of = c.needs.pop()
		o.work, o.done = o.of.begin()
		if o.work == nil {
			o.of.state, o.of = enough, nil
		}
	}
	return o
}

func (c *core) wasteOrder() *order {
	o := &order{waste: c.waste}
	c.waste = nil
	return o
}

// carryOut is called without the lock.
func (o *order) carryOut() {
	n := len(o.waste)
	o.waste, _ = pool.CloseSlabs(o.waste) // makes room for the rest
	o.freed = n - len(o.waste)
	if o.work != nil {
		o.work()
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
	if o.of != nil {
		o.of.state = enough
		o.done()
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
		e.unlocked(o.carryOut)
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
	o := c.wasteOrder()
	e.unlocked(o.carryOut)
	c.supplied(o)
	return true
}

// mapSlab has f map a slab, in the caller's goroutine. If the budget has no room, it tries
// again once the memory that this endpoint is done with, or is about to be, is unmapped. A
// broken endpoint gets none.
func (e *Endpoint) mapSlab(f func() (*pool.Slab, error)) (slab *pool.Slab, err error) {
	c := e.core
	for c.err == nil {
		e.unlocked(func() { slab, err = f() })
		switch {
		case err == nil && c.err != nil:
			c.discard(slab) // shutdown closes it
			return nil, c.err
		case !errors.Is(err, pool.ErrBudget):
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
