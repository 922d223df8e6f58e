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
// often follow; but not after the first peer that was dialed. There is at most one of a kind.
// Nobody needs it yet, so it is opened only while there is plenty of room, and closed after
// DefaultIdlePeerTimeout, or IdlePeerTimeout if that is less.

// spareMemory says when a spare may be opened: while less than 1/spareMemory of MemoryLimit is
// in use.
const spareMemory = 4

// ownKey returns the key of an endpoint of a provider that needs one for each peer. If the
// provider stays within the host, the key is the same for all of the host's addresses.
func ownKey(o *offer, src netip.Addr) endpointKey {
	if o.SameHost {
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
	es.mu.Lock()
	if dialed {
		es.dialed++
	}
	cleared, few := es.cleared, dialed && es.dialed < 2
	es.mu.Unlock()
	if few {
		return
	}
	time.AfterFunc(spareDelay, func() {
		if end, err := es.t.begin(); err == nil {
			defer end()
			if ep := es.newSpare(key, cleared); ep != nil {
				es.openSpare(ep)
			}
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
	cleared := es.timesCleared()
	var ep *endpoint
	if o.PerPeer {
		ep = es.newSpare(ownKey(o, src), cleared) // now, so that whoever needs it finds it
	}
	go func() {
		defer end()
		switch {
		case ep != nil:
			es.openSpare(ep)
		case !o.PerPeer:
			es.openShared(o, src, cleared)
		}
	}()
}

// warmUpTime is how long an endpoint may take to warm up.
const warmUpTime = time.Second

// openShared opens a shared endpoint, unless there is one or too little room, and prepares it for
// a peer. Like one that has had peers, it stays until CloseIdle or the end of the last listener.
// cleared is from timesCleared: if it has changed, CloseIdle has come since.
func (es *endpoints) openShared(o *offer, src netip.Addr, cleared int) {
	key := endpointKey{o.Name, o.domain, src}
	es.mu.Lock()
	may := cleared == es.cleared && len(es.shared[key]) == 0 && es.mayAddLocked(key, spareMemory, 0)
	es.mu.Unlock()
	if !may {
		return
	}
	ctx, cancel := context.WithTimeout(es.t.ctx, warmUpTime)
	defer cancel()
	ep, err := es.endpoint(ctx, o, src)
	if err != nil {
		return
	}
	if err := ep.engine.Prepare(); err == nil && o.WarmsUp {
		_ = ep.engine.SelfCheck(ctx)
	}
	es.release(ep)
	if cleared != es.timesCleared() { // CloseIdle could not close it
		es.closeIdle()
	}
}

// newSpare returns a spare that the caller has to open. It returns nil if there is one or too
// little room, or if spares were closed since timesCleared returned cleared.
func (es *endpoints) newSpare(key endpointKey, cleared int) *endpoint {
	if s, ok := es.t.fabric.(fabric.Sparer); ok && !s.Spare() {
		return nil
	}
	es.mu.Lock()
	defer es.mu.Unlock()
	if cleared != es.cleared || es.spares[key] != nil || es.shmPeers+len(es.spares) >= es.t.maxShmPeers() ||
		!es.mayAddLocked(key, spareMemory, shmPeerMemory) {
		return nil
	}
	ep := es.newOwnLocked(key)
	es.spares[key] = ep
	return ep
}

// openSpare opens a spare. A peer may have it already, and wait until it is open.
func (es *endpoints) openSpare(ep *endpoint) {
	ep.open(es)
	err := ep.err
	if err == nil {
		err = ep.engine.Prepare() // a peer that has it will be told what is missing
	}
	close(ep.opened)
	if err != nil {
		es.dropSpare(ep)
		return
	}
	es.mu.Lock()
	defer es.mu.Unlock()
	if es.spares[ep.key] == ep {
		ep.expiry = time.AfterFunc(min(es.t.idleTimeout(), DefaultIdlePeerTimeout), func() { es.t.spawn(func() { es.dropSpare(ep) }) })
	}
}

// timesCleared returns how often all spares were closed. What was to be opened early before that
// no longer is.
func (es *endpoints) timesCleared() int {
	es.mu.Lock()
	defer es.mu.Unlock()
	return es.cleared
}

// named reports whether a peer can attach to the endpoint's memory, as far as is known.
func (ep *endpoint) named() bool {
	if !ep.isOpen() {
		return true
	}
	n, ok := ep.fab.(interface{ Named() bool })
	return !ok || n.Named()
}

// takeSpareLocked returns the spare with a key, which is then no spare any more; nil if there is
// none.
func (es *endpoints) takeSpareLocked(key endpointKey) *endpoint {
	ep := es.spares[key]
	delete(es.spares, key)
	if ep != nil && ep.expiry != nil {
		ep.expiry.Stop()
	}
	return ep
}

// takeSparesLocked is takeSpareLocked for all spares. Those that are about to come do not.
func (es *endpoints) takeSparesLocked() (list []*endpoint) {
	es.cleared++
	for key := range es.spares {
		list = append(list, es.takeSpareLocked(key))
	}
	return list
}

// dropSpare closes a spare, unless a peer has it.
func (es *endpoints) dropSpare(ep *endpoint) {
	es.mu.Lock()
	mine := es.spares[ep.key] == ep
	if mine {
		es.takeSpareLocked(ep.key)
	}
	es.mu.Unlock()
	if mine {
		es.closeOne(ep)
	}
}

// dropSpares closes all spares, because somebody needs their place or memory. It reports whether
// there were any.
func (es *endpoints) dropSpares() bool {
	es.mu.Lock()
	list := es.takeSparesLocked()
	es.mu.Unlock()
	es.closeEach(list)
	return len(list) > 0
}
