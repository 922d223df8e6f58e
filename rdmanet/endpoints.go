package rdmanet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/engine"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/shmdir"
)

// endpointKey is what peers must have in common to share an endpoint.
type endpointKey struct {
	provider string
	domain   string // if the user has named it
	src      netip.Addr
}

// endpoint is an open fabric endpoint. Most are shared by the peers that are reached from one
// local address, and live until they take no more peers and the last one has gone. Those of
// providers that need one for each peer live as long as their peer.
type endpoint struct {
	key    endpointKey
	own    bool          // serves a single peer
	slots  int           // receive slots of each of its peers
	opened chan struct{} // closed when what follows is set
	err    error
	engine *engine.Endpoint
	fab    fabric.Endpoint
	// avoided: no further peers get it as long as another may be opened. What the provider holds of a peer
	// that has fallen silent, such as a TCP connection that was cut (tcp;ofi_rxm) or packet numbers
	// (udp;ofi_rxd), would get in the way of a new dial between the same two endpoints. Or it is of no use.
	avoided atomic.Bool

	closing context.Context // ends when close is called
	close   context.CancelFunc

	// Guarded by endpoints.mu.
	refs   int
	spread bool        // see fabric.ProviderInfo; not if no further endpoint could be opened
	expiry *time.Timer // closes a spare that is open
}

// endpoints holds a Transport's fabric endpoints. All methods may be called concurrently, except
// those whose names end in Locked, for which mu must be held.
type endpoints struct {
	t *Transport

	mu       sync.Mutex                  // a leaf; guards what follows
	shared   map[endpointKey][]*endpoint // the shared ones, oldest first
	open     map[*endpoint]struct{}      // all, until their counters are in past
	past     map[string]ProviderStats    // of closed ones, by provider
	spare    *endpoint                   // see spares.go
	cleared  atomic.Int64                // how often CloseIdle has come
	dialed   bool                        // a peer with an endpoint of its own was dialed
	shmPeers int
	cleaned  sync.Once // the removal of what dead processes left in /dev/shm has been started
}

func (es *endpoints) init(t *Transport) {
	es.t, es.shared = t, make(map[endpointKey][]*endpoint)
	es.open, es.past = make(map[*endpoint]struct{}), make(map[string]ProviderStats)
}

// maxEndpoints is how many endpoints with one endpointKey there are at most. tcp;ofi_rxm takes some 19 MiB for
// each, besides the Transport's memory.
const maxEndpoints = 64

// fewSlots is how many receive slots each peer gets, except on the first endpoint with its key, where it gets
// engine.SharedSlots: with a thousand peers these would take all memory of a Transport.
const fewSlots = engine.SharedSlots / 4

// spreadPeers is how many peers an endpoint gets before another one is opened, up to spreadEndpoints, if polling
// its queue takes longer the more peers it has (fabric.ProviderInfo.Spread).
const (
	spreadPeers     = 16
	spreadEndpoints = 16
)

// shmPeerMemory is about how much of the Transport's memory an endpoint takes, in bytes.
const shmPeerMemory = 2 << 20

// maxShmPeers returns how many peers over shared memory there may be.
func (t *Transport) maxShmPeers() int {
	limit := orDefault(t.limit, DefaultMemoryLimit) / 2 / shmPeerMemory
	return orDefault(t.MaxShmPeers, int(min(max(limit, 1), math.MaxInt32)))
}

// errEndpoints says that there may be no more endpoints.
var errEndpoints = fmt.Errorf("all %d endpoints are %w, or stale since most of their peers are dead: close conns, name another provider as well, or use another Transport", maxEndpoints, engine.ErrFull)

// place reserves a peer for a handshake, and closes idle peers if there is no room. The place is held until
// link.Abort or the end of the peer.
func (es *endpoints) place(ctx context.Context, o *offer, src netip.Addr, cfg engine.PeerConfig, l *link) (err error) {
	full := false
	es.t.links.makeRoom(func(other *link) bool { return other.ep.key.provider == o.Name }, func() bool {
		err = es.newPeer(ctx, o, src, cfg, l)
		full = errors.Is(err, engine.ErrFull) || errors.Is(err, ErrTooManyShmPeers)
		return !full && !errors.Is(err, engine.ErrMemory)
	})
	if full {
		es.t.counters.peersRefused.Add(1)
	}
	return err
}

// newPeer reserves a peer on one of the endpoints that there are, or on a new one. Others may take its place
// meanwhile: then there is another one.
func (es *endpoints) newPeer(ctx context.Context, o *offer, src netip.Addr, cfg engine.PeerConfig, l *link) error {
	for {
		ep, open, err := es.reserve(o, src)
		if err != nil {
			return err
		}
		if err = es.await(ctx, ep, open); err == nil {
			l.ep = ep
			if l.peer, err = ep.engine.NewPeer(cfg); err == nil {
				return nil
			}
		}
		again := ctx.Err() == nil && es.again(ep, open, err)
		es.release(ep)
		if !again {
			return err
		}
	}
}

// await waits until an endpoint is open. The caller has to open it if open is true.
func (es *endpoints) await(ctx context.Context, ep *endpoint, open bool) error {
	if open {
		ep.open(es)
		close(ep.opened)
	}
	select {
	case <-ep.opened:
		return ep.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// again reports whether a handshake tries once more, after err. An endpoint that has no peers and takes none is
// of no use: the next handshake gets another. If it was one too many, those that are there take more.
func (es *endpoints) again(ep *endpoint, open bool, err error) bool {
	switch {
	case errors.Is(err, engine.ErrFull): // others were faster
		return true
	case errors.Is(err, engine.ErrMemory) && es.dropSpare(nil):
		return true
	case ep.own:
		return ep.err != nil && !open // it was a spare that others had begun to open
	case ep.err == nil && ep.engine.Stats().Peers > 0:
		return false
	}
	ep.avoided.Store(true)
	es.mu.Lock()
	defer es.mu.Unlock()
	for _, other := range es.shared[ep.key] {
		if other.spread = false; other != ep {
			other.avoided.Store(false)
		}
	}
	return slices.ContainsFunc(es.shared[ep.key], (*endpoint).takes)
}

// isOpen reports whether open has ended, successfully or not.
func (ep *endpoint) isOpen() bool {
	select {
	case <-ep.opened:
		return true
	default:
		return false
	}
}

// takes reports whether further peers get the endpoint, as far as is known.
func (ep *endpoint) takes() bool { return !ep.avoided.Load() && ep.hasQuota() }

// hasQuota reports whether the endpoint has a quota for another peer, as far as is known.
func (ep *endpoint) hasQuota() bool { return !ep.isOpen() || ep.engine != nil && ep.engine.Takes() }

// reserve takes a reference to an endpoint, which the caller has to open if open is true; release gives it
// back. It takes the oldest endpoint with the peer's key that has a quota, so that later ones empty in time; or
// else a new one. If the peer is better off on another endpoint, that is so only if there are enough of them. It
// fails if there may be no further endpoint.
func (es *endpoints) reserve(o *offer, src netip.Addr) (ep *endpoint, open bool, err error) {
	key := keyOf(o, src)
	es.mu.Lock()
	defer es.mu.Unlock()
	if o.PerPeer {
		return es.reserveOwnLocked(key)
	}
	for _, stale := range es.trimLocked(key) { // since its last peer has gone
		es.closeSoon(stale)
	}
	list := es.shared[key]
	for _, old := range list {
		if old.hasQuota() && (ep == nil || es.enoughLocked(old) < es.enoughLocked(ep)) {
			ep = old
		}
	}
	if ep != nil && len(list) >= es.enoughLocked(ep) {
		ep.refs++
		return ep, false, nil
	}
	if len(list) >= maxEndpoints {
		return nil, false, fmt.Errorf("provider %s: %w", key.provider, errEndpoints)
	}
	ep = es.newLocked(key)
	ep.refs, ep.spread, ep.slots = 1, o.Spread, engine.SharedSlots
	if len(list) > 0 {
		ep.slots = fewSlots
	}
	es.shared[key] = append(list, ep)
	return ep, true, nil
}

// enoughLocked returns with how many endpoints there are no others for the next peer, if ep takes it.
func (es *endpoints) enoughLocked(ep *endpoint) int {
	full := ep.spread && ep.refs >= spreadPeers
	switch {
	case ep.avoided.Load():
		return maxEndpoints
	case full && es.hasRoom(2, 0):
		return spreadEndpoints
	case full:
		return 1 // it comes after those that are not
	}
	return 0
}

// reserveOwnLocked is reserve for providers where each peer has an endpoint of its own.
func (es *endpoints) reserveOwnLocked(key endpointKey) (ep *endpoint, open bool, err error) {
	limit := es.t.maxShmPeers()
	if es.shmPeers >= limit {
		return nil, false, fmt.Errorf("%w: %d, none of which is idle (Transport.MaxShmPeers)", ErrTooManyShmPeers, limit)
	}
	es.shmPeers++
	switch spare := es.spare; {
	case spare == nil:
	case spare.key == key && spare.takes() && spare.named():
		ep = es.takeSpareLocked()
	case spare.key == key || es.shmPeers == limit: // it is of no use, or takes the peer's place
		es.closeSoon(es.takeSpareLocked())
	}
	if ep == nil {
		ep, open = es.newOwnLocked(key), true
	}
	ep.refs = 1
	return ep, open, nil
}

// newOwnLocked returns an endpoint for one peer, which the caller has to open.
func (es *endpoints) newOwnLocked(key endpointKey) *endpoint {
	es.cleaned.Do(func() { es.t.hands.start(func() { shmdir.Clean(shmdir.Dir) }) })
	ep := es.newLocked(key)
	ep.own = true
	return ep
}

func (es *endpoints) newLocked(key endpointKey) *endpoint {
	ep := &endpoint{key: key, opened: make(chan struct{})}
	ep.closing, ep.close = context.WithCancel(context.Background())
	es.open[ep] = struct{}{}
	return ep
}

// hasRoom reports whether an endpoint may be opened that could be done without: together
// with the bytes that it takes, less than 1/part of the memory limit is in use.
func (es *endpoints) hasRoom(part, takes int64) bool {
	m := es.t.budget.Stats()
	return m.Used+takes < m.Limit/part
}

func (ep *endpoint) open(es *endpoints) {
	ep.fab, ep.err = es.t.fabric.Open(fabric.Join(ep.key.provider, ep.key.domain), ep.key.src)
	if ep.err == nil {
		fab := ep.fab
		if ep.own {
			fab = newSelfPair(fab)
		}
		cfg := es.t.engineConfig()
		cfg.PeerSlots = ep.slots
		if ep.engine, ep.err = engine.NewEndpoint(fab, cfg); ep.err != nil {
			fab.Close()
		}
	}
}

// trimLocked closes endpoints without peers: those that take no peers any more, and all others but the oldest.
func (es *endpoints) trimLocked(key endpointKey) (gone []*endpoint) {
	kept := false
	es.shared[key] = slices.DeleteFunc(es.shared[key], func(ep *endpoint) bool {
		if ep.refs > 0 {
			return false
		}
		if ep.takes() && !kept {
			kept = true
			return false
		}
		gone = append(gone, ep)
		return true
	})
	return gone
}

// release gives a reference back, and closes what is of no use without it.
func (es *endpoints) release(ep *endpoint) {
	es.mu.Lock()
	ep.refs--
	gone := []*endpoint{ep}
	if ep.own {
		es.shmPeers--
	} else {
		gone = es.trimLocked(ep.key)
	}
	es.mu.Unlock()
	for _, ep := range gone {
		es.closeOne(ep)
	}
}

// closeIdle closes the endpoints that have no peers, and waits for others that are doing so.
func (es *endpoints) closeIdle() {
	for _, ep := range es.closeIdleSoon() {
		es.closeOne(ep)
	}
}

// closeIdleSoon closes the endpoints that have no peers, and returns them. No peer gets them any more.
func (es *endpoints) closeIdleSoon() (list []*endpoint) {
	es.mu.Lock()
	defer es.mu.Unlock()
	es.cleared.Add(1)
	es.takeSpareLocked()
	for key := range es.shared {
		es.shared[key] = slices.DeleteFunc(es.shared[key], func(ep *endpoint) bool { return ep.refs == 0 })
	}
	for ep := range es.open {
		if ep.refs == 0 { // others may be about to close it: its Close waits for them
			es.closeSoon(ep)
			list = append(list, ep)
		}
	}
	return list
}

// closeSoon is closeOne in a goroutine that Transport.Close waits for.
func (es *endpoints) closeSoon(ep *endpoint) { es.t.spawn(func() { es.closeOne(ep) }) }

// closeOne closes an endpoint for good and keeps its counters.
func (es *endpoints) closeOne(ep *endpoint) {
	<-ep.opened
	ep.close()
	var s ProviderStats
	if ep.engine != nil {
		_ = ep.engine.Close() // the endpoint is of no use any more, whatever that returns
		s = ep.engine.Stats().Ended()
	}
	es.mu.Lock()
	defer es.mu.Unlock()
	if _, first := es.open[ep]; first && ep.engine != nil {
		s.Add(es.past[ep.key.provider])
		es.past[ep.key.provider] = s
	}
	delete(es.open, ep)
}

// stats returns the counters of all endpoints by provider, including closed ones.
func (es *endpoints) stats() map[string]ProviderStats {
	es.mu.Lock()
	out, open := maps.Clone(es.past), keys(es.open)
	es.mu.Unlock()
	for _, ep := range open {
		if ep.isOpen() && ep.engine != nil {
			s := ep.engine.Stats().ProviderStats
			s.Add(out[ep.key.provider])
			out[ep.key.provider] = s
		}
	}
	return out
}

// unlink removes the name of the memory that the endpoint shares with its peer, which has
// attached to it: a process that is killed after that leaves nothing in /dev/shm. Endpoints
// that have sockets are told that there may be new ones.
func (ep *endpoint) unlink() {
	if c, ok := ep.fab.(interface{ Connected() }); ok {
		c.Connected()
	}
	if u, ok := ep.fab.(interface{ Unlink() error }); ok && ep.own {
		_ = u.Unlink() // Close tries again
	}
}
