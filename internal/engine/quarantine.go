package engine

import "github.com/seed202c38ff/fabricnet/pool"

// quarantine is the landing memory of peers that are gone. Only fi_close(3) of the endpoint
// ends what their operations may still do to it: see pool.Slab.Retire.
//
//	list    what is in it                     until
//	unread  memory that users may still       releaseQuarantine finds that nobody reads it any more, and
//	        read, and all that is new         gives the pages back, without the lock
//	kept    addresses without pages of their  the endpoint is closed
//	        own; memory of peers that were
//	        quit
type quarantine struct {
	unread, kept []*pool.Arena
	bytes        int64 // kept
}

func (g *quarantine) keep(mem *pool.Arena) {
	g.kept = append(g.kept, mem)
	g.bytes += mem.Stats().Mapped
}

func (g *quarantine) all() []*pool.Arena {
	return append(g.unread[:len(g.unread):len(g.unread)], g.kept...)
}

// quarantineLanding ends the peer's right to write, as far as that is possible, unless it was quit.
func (p *peer) quarantineLanding() {
	g := &p.c.quarantine
	switch {
	case p.keepLanding:
		p.landing.Void()
		g.keep(p.landing)
	default:
		_ = p.landing.Deregister() // what cannot be withdrawn now will be with the endpoint
		g.unread = append(g.unread, p.landing)
	}
}

// releasing reports whether memory of dead peers is going to be given back. A broken endpoint
// gives it back when it is closed.
func (c *core) releasing() bool { return len(c.quarantine.unread) > 0 && c.err == nil }

// retirable takes the memory that nobody reads any more out of unread.
func (c *core) retirable() (ready []*pool.Arena) {
	if !c.releasing() {
		return nil
	}
	unread := c.quarantine.unread[:0]
	for _, mem := range c.quarantine.unread {
		if mem.Stats().Blocks == 0 {
			ready = append(ready, mem)
		} else {
			unread = append(unread, mem)
		}
	}
	clear(c.quarantine.unread[len(unread):])
	c.quarantine.unread = unread
	return ready
}

// keepUnreleased keeps what is left of the memory that retirable returned, after Retire. Where
// Retire has failed, the memory stays as it is.
func (c *core) keepUnreleased(list []*pool.Arena) {
	for _, mem := range list {
		if mem.Stats().Slabs > 0 {
			c.quarantine.keep(mem)
		}
	}
}

// releaseQuarantine gives back the memory of dead peers that nobody reads any more.
func (e *Endpoint) releaseQuarantine() {
	e.enter()
	defer e.leave()
	ready := e.core.retirable()
	if len(ready) == 0 {
		return
	}
	e.unlocked(func() {
		for _, mem := range ready {
			_ = mem.Retire()
		}
	})
	e.core.keepUnreleased(ready)
}
