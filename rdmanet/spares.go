package rdmanet

import (
	"context"
	"net/netip"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// A spare is an endpoint for a peer that is still to come, of a provider that needs one for each
// peer. Opening one takes milliseconds, most of them to reserve memory that both processes map. A
// dial waits for that at both ends, unless it was done before. A spare is opened when a listener
// is opened, when a dial is about to need one, and when a peer has come up, since more of them
// often follow; but not after the first peer that was dialed. There is at most one.
// Nobody needs it yet, so it is opened only while there is plenty of room, and closed after
// DefaultIdlePeerTimeout, or IdlePeerTimeout if that is less.

// spareMemory says when a spare may be opened: while less than 1/spareMemory of MemoryLimit is
// in use.
const spareMemory = 4

// keyOf returns the key of an endpoint. If each peer needs one, and the provider stays within the host, the key
// is the same for all of the host's addresses.
func keyOf(o *offer, src netip.Addr) endpointKey {
	if o.PerPeer && o.SameHost {
		src = netip.Addr{}
	}
	return endpointKey{o.Name, o.domain, src}
}

// spareDelay is how long after a peer has come up a spare is opened: the peer gets the processor
// first.
const spareDelay = 20 * time.Millisecond

// spareSoon opens a spare after spareDelay, in a goroutine that Transport.Close waits for, unless
// CloseIdle comes first. After dialed peers it does so from the second one on: many programs dial
// only one.
func (es *endpoints) spareSoon(key endpointKey, dialed bool) {
	cleared := es.cleared.Load()
	es.mu.Lock()
	first := dialed && !es.dialed
	es.dialed = es.dialed || dialed
	es.mu.Unlock()
	if first {
		return
	}
	time.AfterFunc(spareDelay, func() {
		if end, err := es.t.begin(); err == nil {
			defer end()
			es.openSpare(es.newSpare(key, cleared))
		}
	})
}

// openEarly opens what the next peer needs, in a goroutine that Transport.Close waits for. It
// does not matter if that fails.
func (es *endpoints) openEarly(o *offer, src netip.Addr) {
	if !o.PerPeer && src.IsUnspecified() {
		return // it is not known by which of the host's addresses peers will come
	}
	end, err := es.t.begin()
	if err != nil {
		return
	}
	cleared := es.cleared.Load()
	open := func() { es.openShared(o, src, cleared) }
	if o.PerPeer {
		ep := es.newSpare(keyOf(o, src), cleared) // now, so that whoever needs it finds it
		open = func() { es.openSpare(ep) }
	}
	go func() {
		defer end()
		open()
	}()
}

// warmUpTime is how long an endpoint may take to warm up.
const warmUpTime = time.Second

// openShared opens a shared endpoint, unless there is one or too little room, and prepares it for
// a peer. Like one that has had peers, it stays until CloseIdle or the end of the last listener.
// If cleared is not es.cleared, CloseIdle has come meanwhile.
func (es *endpoints) openShared(o *offer, src netip.Addr, cleared int64) {
	if cleared != es.cleared.Load() || !es.hasRoom(spareMemory, 0) {
		return
	}
	ctx, cancel := context.WithTimeout(es.t.ctx, warmUpTime)
	defer cancel()
	ep, open, err := es.reserve(o, src)
	if err != nil {
		return
	}
	if open && es.await(ctx, ep, true) == nil && ep.engine.Prepare() == nil && o.WarmsUp {
		_ = ep.engine.SelfCheck(ctx)
	}
	es.release(ep)
	if cleared != es.cleared.Load() { // CloseIdle could not close it
		es.closeIdle()
	}
}

// newSpare returns a spare, for openSpare. It returns nil if there is one or too little room, or if CloseIdle
// has come since es.cleared was cleared.
func (es *endpoints) newSpare(key endpointKey, cleared int64) *endpoint {
	if s, ok := es.t.fabric.(fabric.Sparer); ok && !s.Spare() {
		return nil
	}
	es.mu.Lock()
	defer es.mu.Unlock()
	if cleared != es.cleared.Load() || es.spare != nil || es.shmPeers >= es.t.maxShmPeers() ||
		!es.hasRoom(spareMemory, shmPeerMemory) {
		return nil
	}
	es.spare = es.newOwnLocked(key)
	return es.spare
}

// openSpare opens a spare, unless that is nil. A peer may have it already, and wait until it is open.
func (es *endpoints) openSpare(ep *endpoint) {
	if ep == nil {
		return
	}
	ep.open(es)
	if ep.err == nil {
		ep.err = ep.engine.Prepare() // a peer that has it opens another, and is told what is missing
	}
	close(ep.opened)
	if ep.err != nil {
		es.dropSpare(ep)
		return
	}
	es.mu.Lock()
	defer es.mu.Unlock()
	if es.spare == ep {
		ep.expiry = time.AfterFunc(min(es.t.idleTimeout(), DefaultIdlePeerTimeout), func() { es.t.spawn(func() { es.dropSpare(ep) }) })
	}
}

// named reports whether a peer can attach to the endpoint's memory, as far as is known.
func (ep *endpoint) named() bool {
	if !ep.isOpen() {
		return true
	}
	n, ok := ep.fab.(interface{ Named() bool })
	return !ok || n.Named()
}

// takeSpareLocked returns the spare, which is then no spare any more; nil if there is none.
func (es *endpoints) takeSpareLocked() *endpoint {
	ep := es.spare
	es.spare = nil
	if ep != nil && ep.expiry != nil {
		ep.expiry.Stop()
	}
	return ep
}

// dropSpare closes the spare, because somebody needs its place or memory; if ep is not nil, only if that is the
// spare. It reports whether it did.
func (es *endpoints) dropSpare(ep *endpoint) bool {
	es.mu.Lock()
	if ep != nil && ep != es.spare {
		es.mu.Unlock()
		return false // a peer has it
	}
	ep = es.takeSpareLocked()
	es.mu.Unlock()
	if ep != nil {
		es.closeOne(ep)
	}
	return ep != nil
}
