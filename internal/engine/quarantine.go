package engine

import "github.com/seed202c38ff/fabricnet/pool"

// quarantine is the landing memory of peers that have gone. Only fi_close(3) of the endpoint
// ends what their operations may still do to it: see pool.Slab.Retire.
//
//	list    what is there                     until
//	unread  what users may read, and all      releaseQuarantine finds that nobody reads it: it gives the
//	        that is new                       pages back, without the lock
//	kept    addresses that lead nowhere;      the endpoint is closed
//	        memory of peers that were quit
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

// quarantineLanding ends the peer's right to write, as far as that goes, unless it was quit.
func (p *peer) quarantineLanding() {
	g := &p.c.quarantine
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

// releasing reports that the memory of dead peers will be given back. That of an endpoint
// that is broken is when it is closed.
func (c *core) releasing() bool { return len(c.quarantine.unread) > 0 && c.err == nil }

// retirable takes out the memory that nobody reads any more.
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

// keepUnreleased keeps of what retirable returned, and Retire was called of, what is left. If that
// has failed, the memory stays as it is.
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
