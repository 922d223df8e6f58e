package rdmanet

import (
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
	cache   map[linkKey]*link
	flights map[flightKey]*flight
	names   map[nameKey]name // resolved recently
	janitor *time.Timer      // nil while there is no dialed link
	ended   bool             // there is to be no janitor any more
}

func (ls *links) init(t *Transport) {
	ls.t, ls.all = t, make(map[*link]struct{})
	ls.cache, ls.flights, ls.names = make(map[linkKey]*link), make(map[flightKey]*flight), make(map[nameKey]name)
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
	if ls.cache[l.key] == l {
		delete(ls.cache, l.key)
	}
}

// forget removes a link and keeps its counters.
func (ls *links) forget(l *link, wire bootstrap.Stats) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	delete(ls.all, l)
	ls.t.counters.keepWire(wire) // under mu, so that count counts it once
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

// admitLocked makes a link one of those that dials use. It keeps the link out of the cache
// unless reuse is set.
func (ls *links) admitLocked(l *link, key linkKey, reuse bool, users int) {
	l.key, l.reuse, l.dialed = key, reuse, true
	l.users += users
	l.opens += uint64(users)
	if reuse && !l.dead {
		ls.cache[key] = l
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

// makeRoom closes the one of the matching peers that has been without conns for longest, since
// somebody needs what it takes: one that was dialed, or else one that was accepted. It reports
// false if there is none that may be closed.
func (ls *links) makeRoom(match func(*link) bool) bool {
	dialed := func(l *link) bool { return l.dialed && match(l) }
	accepted := func(l *link) bool { return l.listener != nil && match(l) }
	return ls.t.IdlePeerTimeout >= 0 && ls.endIdle(dialed, func(l *link) bool { return l.retire(0) }) ||
		ls.endIdle(accepted, (*link).letGo)
}

// endIdle calls end for the matching peers until that has ended one. Those that have been
// without conns for longest come first.
func (ls *links) endIdle(match, end func(*link) bool) bool {
	ls.mu.Lock()
	list := slices.DeleteFunc(keys(ls.all), func(l *link) bool { return l.dead || !match(l) })
	ls.mu.Unlock()
	slices.SortFunc(list, func(a, b *link) int {
		_, since := a.peer.Idle()
		_, other := b.peer.Idle()
		return since.Compare(other)
	})
	return slices.ContainsFunc(list, end)
}
