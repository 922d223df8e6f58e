package engine

import (
	"slices"

	"github.com/seed202c38ff/fabricnet/pool"
)

// quarantine is the landing memory of peers that are gone. Only fi_close(3) of the endpoint
// ends what their operations may still do to it: see pool.Slab.Retire.
//
//	list    what is in it                     until
//	unread  memory that users may still       nobody reads it any more: see orderRetire
//	        read, and all that is new
//	kept    addresses without pages of their  the endpoint is closed
//	        own; memory of peers that were
//	        quit
type quarantine struct {
	unread, kept []*pool.Arena
	bytes        int64 // kept
	supply       supply
}

func (g *quarantine) keep(mem *pool.Arena) {
	g.kept = append(g.kept, mem)
	g.bytes += mem.Stats().Mapped
}

func (g *quarantine) all() []*pool.Arena { return slices.Concat(g.unread, g.kept) }

// quarantineLanding ends the peer's right to write, as far as that is possible, unless it was quit.
func (p *peer) quarantineLanding() {
	g := &p.c.quarantine
	if p.keepLanding {
		p.landing.Void()
		g.keep(p.landing)
		return
	}
	p.c.discard(p.landing.Trim(0)...) // the peer had given back all it had of these slabs
	_ = p.landing.Deregister()        // what cannot be withdrawn now will be with the endpoint
	if p.landing.Stats().Slabs > 0 {
		g.unread = append(g.unread, p.landing)
	}
}

// releasing reports whether memory of dead peers is going to be given back. A broken endpoint
// gives it back when it is closed.
func (c *core) releasing() bool { return len(c.quarantine.unread) > 0 && c.err == nil }

// orderRetire gives back the memory of dead peers that nobody reads any more, except for its addresses. Where
// that fails, the memory stays as it is.
func (c *core) orderRetire() (work, done func()) {
	g := &c.quarantine
	var ready []*pool.Arena
	g.unread = slices.DeleteFunc(g.unread, func(mem *pool.Arena) bool {
		unused := mem.Stats().Blocks == 0
		if unused {
			ready = append(ready, mem)
		}
		return unused
	})
	if len(ready) == 0 {
		return nil, nil
	}
	work = func() {
		for _, mem := range ready {
			_ = mem.Retire()
		}
	}
	return work, func() {
		for _, mem := range ready {
			g.keep(mem)
		}
	}
}
