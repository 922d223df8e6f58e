package engine

import "github.com/seed202c38ff/fabricnet/pool"

// graves is the landing memory of peers that have gone. Only fi_close(3) of the endpoint
// ends what their operations may still do to it: see pool.Slab.Retire.
//
//	list    what is there                     until
//	unread  what users may read, and all      bury finds that nobody reads it: it gives the
//	        that is new                       pages back, without the lock
//	kept    addresses that lead nowhere;      the endpoint is closed
//	        memory of peers that were quit
type graves struct {
	unread, kept []*pool.Arena
	bytes        int64 // kept
}

func (g *graves) keep(mem *pool.Arena) {
	g.kept = append(g.kept, mem)
	g.bytes += mem.Stats().Mapped
}

func (g *graves) all() []*pool.Arena {
	return append(g.unread[:len(g.unread):len(g.unread)], g.kept...)
}

// buryLanding ends the peer's right to write, as far as that goes, unless it was quit.
func (p *peer) buryLanding() {
	g := &p.c.graves
	switch {
	case p.landing == nil:
	case p.keepLanding:
		p.landing.Void()
		g.keep(p.landing)
	default:
		_ = p.landing.Deregister() // what cannot be withdrawn now is with the endpoint
		g.unread = append(g.unread, p.landing)
	}
}

// burying reports that the memory of dead peers will be given back. That of an endpoint
// that is broken is when it is closed.
func (c *core) burying() bool { return len(c.graves.unread) > 0 && c.err == nil }

// retirable takes out the memory that nobody reads any more.
func (c *core) retirable() (ready []*pool.Arena) {
	if !c.burying() {
		return nil
	}
	unread := c.graves.unread[:0]
	for _, mem := range c.graves.unread {
		if mem.Stats().Blocks == 0 {
			ready = append(ready, mem)
		} else {
			unread = append(unread, mem)
		}
	}
	clear(c.graves.unread[len(unread):])
	c.graves.unread = unread
	return ready
}

// buried keeps of what retirable returned, and Retire was called of, what is left. If that
// has failed, the memory stays as it is.
func (c *core) buried(list []*pool.Arena) {
	for _, mem := range list {
		if mem.Stats().Slabs > 0 {
			c.graves.keep(mem)
		}
	}
}

// bury gives back the memory of dead peers that nobody reads any more.
func (e *Endpoint) bury() {
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
	e.core.buried(ready)
}
