package rdmanet

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/bootstrap"
)

// links holds a Transport's links, dialed and accepted, and finds those that dials can use: see
// reuse.go. All methods may be called concurrently, except those whose names end in Locked.
type links struct {
	t *Transport

	// mu is a leaf: nothing of the engine or of bootstrap is called with it held, since
	// it is taken within their callbacks. It guards what follows, the bookkeeping of each
	// dialed link, and each flight.
	mu      sync.Mutex
	all     map[*link]struct{} // until finish
	cache   map[linkKey]*route
	flights map[flightKey]*flight
	names   map[nameKey]name // resolved recently
	janitor *time.Timer      // nil while there is no dialed link
	ended   bool             // there is to be no janitor any more
	fewer   chan struct{}    // closed, and replaced, when a link has gone

	approaches map[*approach]struct{}
}

func (ls *links) init(t *Transport) {
	ls.t, ls.all = t, make(map[*link]struct{})
	ls.cache, ls.flights, ls.names = make(map[linkKey]*route), make(map[flightKey]*flight), make(map[nameKey]name)
	ls.approaches, ls.fewer = make(map[*approach]struct{}), make(chan struct{})
}

// add keeps a link until forget.
func (ls *links) add(l *link) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.all[l] = struct{}{}
}

// list returns all links.
func (ls *links) list() []*link {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return keys(ls.all)
}

// end stops looking for idle links.
func (ls *links) end() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.ended = true
	if ls.janitor != nil {
		ls.janitor.Stop()
	}
}

// drop takes a link out of the cache.
func (ls *links) drop(l *link) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.dropLocked(l)
}

func (ls *links) dropLocked(l *link) {
	l.dead = true
	for key := range l.keys {
		delete(ls.cache, key)
	}
	clear(l.keys)
}

// dropRouteLocked takes a route out of the cache, and its link with the last one.
func (ls *links) dropRouteLocked(r *route) {
	for key := range r.link.keys {
		if ls.cache[key] == r {
			delete(ls.cache, key)
			delete(r.link.keys, key)
		}
	}
	if len(r.link.keys) == 0 {
		r.link.dead = true
	}
}

// meetings returns where a link that is dead has met listeners.
func (ls *links) meetings(l *link) map[uint32]*meeting {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return maps.Clone(l.met) // part may still take some away
}

// forget removes a link that has given everything back, and keeps its counters.
func (ls *links) forget(l *link, wire bootstrap.Stats) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	delete(ls.all, l)
	ls.t.counters.keepWire(wire) // under mu, so that count counts it once
	close(ls.fewer)
	ls.fewer = make(chan struct{})
}

// count completes a TransportStats.
func (ls *links) count(out *TransportStats) {
	ls.mu.Lock()
	wire, all := ls.t.counters.wire(), keys(ls.all) // what is not in one of them is in the other
	ls.mu.Unlock()
	out.Peers = len(all)
	for _, l := range all {
		if s := l.session.Load(); s != nil {
			more := s.Stats()
			wire.Sent += more.Sent
			wire.Received += more.Received
		}
	}
	out.ControlSent, out.ControlReceived = wire.Sent, wire.Received
}

// unuse ends a dial's use of a link.
func (ls *links) unuse(l *link) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.users--
}

// useLocked counts dials that are about to use a link, until each calls unuse.
func (ls *links) useLocked(l *link, users int) {
	l.users += users
	l.opens += uint64(users)
}

// admitLocked makes a route one of those that dials use, if there is to be reuse.
func (ls *links) admitLocked(r *route, key linkKey, reuse bool) {
	l := r.link
	l.reuse, l.dialed = reuse, true
	if reuse && !l.dead {
		if old := ls.cache[key]; old != nil {
			delete(old.link.keys, key)
		}
		ls.cache[key] = r
		if l.keys == nil {
			l.keys = make(map[linkKey]struct{})
		}
		l.keys[key] = struct{}{}
	}
	if ls.janitor == nil && !ls.ended {
		ls.janitor = time.AfterFunc(ls.cleaning(), func() { ls.t.spawn(ls.clean) })
	}
}

// cleaning returns how often idle peers are looked for. Even if they are kept for ever, there
// are still those that take no more conns.
func (ls *links) cleaning() time.Duration {
	if ls.t.IdlePeerTimeout < 0 {
		return DefaultIdlePeerTimeout / 4
	}
	return max(ls.t.idleTimeout()/4, time.Millisecond)
}

// clean closes idle peers, for as long as there are dialed ones.
func (ls *links) clean() {
	ls.sweep(ls.t.idleTimeout())
	ls.mu.Lock()
	defer ls.mu.Unlock()
	left := false // looked for with mu held, so that no link is admitted unseen
	for l := range ls.all {
		left = left || l.dialed
	}
	if left && !ls.ended {
		ls.janitor.Reset(ls.cleaning())
	} else {
		ls.janitor = nil
	}
}

// sweep closes the dialed peers that have been without conns for idle.
func (ls *links) sweep(idle time.Duration) {
	for _, l := range ls.list() {
		l.retire(idle)
	}
}

// makeRoom calls try until it reports true, or none of the matching peers can make room for it. Each
// time it closes the one that has been without conns for longest: one that was dialed, or else one
// that was accepted.
func (ls *links) makeRoom(match func(*link) bool, try func() bool) {
	dialed := func(l *link) bool { return l.dialed && match(l) }
	accepted := func(l *link) bool { return l.accepted() && match(l) }
	ls.whileEnding(match, func() bool {
		for !try() {
			if (ls.t.IdlePeerTimeout < 0 || !ls.endIdle(dialed, func(l *link) bool { return l.retire(0) })) &&
				!ls.endIdle(accepted, (*link).letGo) {
				return true
			}
		}
		return false
	})
}

// endingTime is how long the end of a peer may take that nothing holds up.
const endingTime = 100 * time.Millisecond

// whileEnding calls f, and again each time a peer has gone, for as long as f reports true and a
// matching one is about to go: one that has only closed conns, whose ends the peer has still to
// confirm. It does not wait longer than endingTime.
func (ls *links) whileEnding(match func(*link) bool, f func() bool) {
	late := time.NewTimer(endingTime)
	defer late.Stop()
	for {
		ls.mu.Lock()
		fewer := ls.fewer
		ls.mu.Unlock()
		if !f() {
			return
		}
		if !ls.ending(match) {
			select {
			case <-fewer:
				continue
			default:
				return
			}
		}
		select {
		case <-fewer:
		case <-late.C:
			return
		}
	}
}

// ending reports whether a matching peer is about to go.
func (ls *links) ending(match func(*link) bool) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for l := range ls.all {
		if match(l) && l.endingLocked() {
			return true
		}
	}
	return false
}

// endIdle calls end for the matching peers until that has ended one. Those that have been
// without conns for longest come first.
func (ls *links) endIdle(match, end func(*link) bool) bool {
	ls.mu.Lock()
	list := slices.DeleteFunc(keys(ls.all), func(l *link) bool { return l.dead || !match(l) })
	ls.mu.Unlock()
	slices.SortFunc(list, func(a, b *link) int {
		_, _, since := a.peer.Idle()
		_, _, other := b.peer.Idle()
		return since.Compare(other)
	})
	return slices.ContainsFunc(list, end)
}
