package engine

import (
	"errors"
	"slices"
	"syscall"

	"github.com/seed202c38ff/fabricnet/pool"
)

// shutdown closes the fabric endpoint and frees what nobody can touch any
// more. The caller owns the completion queue for good.
func (c *core) shutdown() error {
	c.recvs, c.owners, c.down = nil, nil, true
	for p := range c.lost {
		for _, s := range p.streams {
			s.discard()
		}
	}
	end, rest := c.fab.Shutdown, c.close
	if c.attr.EndpointMR { // Shutdown does nothing there
		end, rest = c.close, func() error { return nil }
	}
	if err := end(); err != nil {
		c.stays = true
		c.tryFree()
		return err
	}
	for i := range c.ops { // the fabric touches their memory no more
		if b := c.ops[i].buf; b != nil {
			c.ops[i] = txOp{}
			b.done()
		}
	}
	c.tryFree()
	return rest()
}

// close closes the fabric endpoint. Memory that is still held stays mapped, but the
// endpoint does not wait for it.
func (c *core) close() error { return errors.Join(c.deregister(), c.fab.Close()) }

// registered is memory that the endpoint has registered for itself.
type registered interface {
	Deregister() error
	Close() error
}

func (c *core) registered() []registered {
	return []registered{c.lend, c.rx, c.tx, c.stage}
}

// deregister withdraws all registrations.
func (c *core) deregister() (err error) {
	for _, mem := range c.quarantine.all() {
		err = errors.Join(err, mem.Deregister())
	}
	for slab := range c.slabs {
		err = errors.Join(err, slab.Deregister())
	}
	for _, slab := range slices.Concat(c.waste, c.leftover) {
		err = errors.Join(err, slab.Deregister())
	}
	for _, r := range c.registered() {
		err = errors.Join(err, r.Deregister())
	}
	return err
}

// endCopying ends a copy to or from registered memory, or to a mapped ring, that was made
// without the lock. It returns false if the endpoint was closed meanwhile.
func (c *core) endCopying() bool {
	c.copying--
	c.tryFree()
	return !c.down
}

// tryFree gives back the memory of a closed endpoint, unless somebody uses it.
func (c *core) tryFree() {
	if !c.down {
		return
	}
	if c.stays {
		c.waste = slices.DeleteFunc(c.waste, func(s *pool.Slab) bool { return s.Foreign() && s.Close() == nil })
		return
	}
	c.closeWaste()
	if c.lent == 0 && c.copying == 0 {
		c.free()
	}
}

// discard drops what has not been read yet of a lost peer's stream: its memory is going away.
func (s *stream) discard() {
	if s.recv != recvEOF || !s.segs.empty() {
		s.recv = recvCut
		s.err = syscall.ECONNRESET
	}
	s.segs = segments{}
	s.freeRings()
	s.rd.signal()
}

func (c *core) closeWaste() {
	c.leftover, _ = pool.CloseSlabs(slices.Concat(c.waste, c.leftover))
	c.waste = nil
}

// free gives back all memory, once nobody uses it.
func (c *core) free() {
	for _, mem := range c.quarantine.all() {
		_ = mem.Close()
	}
	c.quarantine = quarantine{}
	c.closeRings()
	c.closeWaste()
	for _, r := range c.registered() {
		_ = r.Close()
	}
}
