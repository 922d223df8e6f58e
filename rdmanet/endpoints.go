package rdmanet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"
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
	spread bool          // see fabric.ProviderInfo
	opened chan struct{} // closed when what follows is set
	err    error
	engine *engine.Endpoint
	fab    fabric.Endpoint

	// Guarded by endpoints.mu.
	refs    int
	retired bool        // not to be used for further peers
	expiry  *time.Timer // closes a spare that is open
}

// endpoints holds a Transport's fabric endpoints. All methods may be called concurrently, except
// those whose names end in Locked, for which mu must be held.
type endpoints struct {
	t *Transport

	mu       sync.Mutex                  // a leaf; guards what follows
	shared   map[endpointKey][]*endpoint // the shared ones, oldest first
	failed   map[endpointKey]time.Time   // when one was last of no use; see spareRetry
	open     map[*endpoint]struct{}      // all, until their counters are in past
	past     map[string]ProviderStats    // of closed ones, by provider
	spares   map[endpointKey]*endpoint   // see spares.go
	cleared  int                         // how often all spares were closed
	dialed   int                         // how many peers with endpoints of their own were dialed
	shmPeers int
	cleaned  bool // the removal of what dead processes left in /dev/shm has been started
}

func (es *endpoints) init(t *Transport) {
	es.t, es.shared, es.failed = t, make(map[endpointKey][]*endpoint), make(map[endpointKey]time.Time)
	es.open, es.past = make(map[*endpoint]struct{}), make(map[string]ProviderStats)
	es.spares = make(map[endpointKey]*endpoint)
}

// maxGenerations is how many endpoints with one endpointKey there are at most. Each has
// places for 256 peers (1,024 receives, engine.LeastSlots for each peer), and for 192 before
// another one is opened. It takes 10 MiB of the Transport's memory, and tcp;ofi_rxm takes
// some 19 MiB besides. More endpoints would cost more than the peers are worth, and need a
// MemoryLimit beyond the default.
const maxGenerations = 16

// spreadPeers is how many peers an endpoint gets before another one is opened if polling its
// queue takes longer the more peers it has (fabric.ProviderInfo.Spread).
const spreadPeers = 16

// spareRetry is for how long no endpoint is opened that could be done without, after one could
// not be opened or took not a single peer.
const spareRetry = time.Minute

// usualDepth is how many receives most endpoints have.
const usualDepth = 1024

// shmPeerMemory is about how much of the Transport's memory an endpoint takes, in bytes.
const shmPeerMemory = 2 << 20

// maxShmPeers returns how many peers over shared memory there may be.
func (t *Transport) maxShmPeers() int {
	limit := orDefault(t.limit, DefaultMemoryLimit) / 2 / shmPeerMemory
	return orDefault(t.MaxShmPeers, int(min(max(limit, 1), math.MaxInt32)))
}

// errGenerations says that there may be no more endpoints.
var errGenerations = fmt.Errorf("all %d endpoints are %w or stale, with memory that peers which died still hold: close conns or peers, or use more processes", maxGenerations, engine.ErrFull)

// place reserves a peer for a handshake. It takes the oldest endpoint with its key that has
// few enough peers, so that later ones empty in time; or else a new one; or, failing that, the
// one with the fewest peers. The place is held until link.Abort or the end of the peer.
func (es *endpoints) place(ctx context.Context, o *offer, src netip.Addr, cfg engine.PeerConfig, l *link) error {
	for {
		ep, err := es.endpoint(ctx, o, src)
		if err != nil {
			return err
		}
		l.ep = ep
		if l.peer, err = es.newPeer(ep, cfg); err == nil {
			return nil
		}
		es.release(ep)
		if !errors.Is(err, engine.ErrFull) || ctx.Err() != nil { // ErrFull: others were faster
			return err
		}
	}
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

// takes reports whether the endpoint takes further peers, as far as is known.
func (ep *endpoint) takes() bool { return ep.room() == engine.RoomOpen }

func (ep *endpoint) room() engine.Room {
	switch {
	case !ep.isOpen():
		return engine.RoomOpen
	case ep.engine == nil:
		return engine.RoomClosed
	default:
		return ep.engine.Room()
	}
}

// saturated reports whether its peers are better off if the next one gets another endpoint.
func (ep *endpoint) saturated() bool { return ep.refs >= ep.places() }

// roomy reports whether another endpoint without peers is not needed beside this one. Between
// roomy and saturated lies a quarter of the places, so that a peer that comes and goes does not
// cause an endpoint to be opened and closed each time.
func (ep *endpoint) roomy() bool {
	return ep.isOpen() && ep.takes() && ep.refs < ep.places()*3/4
}

// places returns how many peers the endpoint gets before another one is opened.
func (ep *endpoint) places() int {
	switch {
	case ep.spread:
		return spreadPeers
	case !ep.isOpen() || ep.engine == nil: // while it is being opened, no more peers than that get it, either
		return engine.Places(usualDepth)
	default:
		return engine.Places(ep.engine.Attr().RxDepth)
	}
}

// endpoint returns an endpoint for one more peer; release gives it back.
func (es *endpoints) endpoint(ctx context.Context, o *offer, src netip.Addr) (*endpoint, error) {
	var ep *endpoint
	var open bool
	var err error
	es.t.links.makeRoom(func(l *link) bool { return l.ep.own == o.PerPeer && l.ep.key.provider == o.Name }, func() bool {
		ep, open, err = es.reserve(o, src)
		return err == nil
	})
	if err != nil {
		es.t.counters.peersRefused.Add(1)
		return nil, err
	}
	if open {
		ep.open(es)
		close(ep.opened)
	}
	select {
	case <-ep.opened:
		err = ep.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err == nil {
		return ep, nil
	}
	again := ctx.Err() == nil && (es.elsewhere(ep) || ep.own && !open || errors.Is(err, engine.ErrMemory) && es.dropSpares())
	es.release(ep)
	if again { // it was one too many; or a spare that others had begun to open; or spares took its memory
		return es.endpoint(ctx, o, src)
	}
	return nil, err
}

// elsewhere reports whether an endpoint is of no use while another with its key takes peers.
func (es *endpoints) elsewhere(ep *endpoint) bool {
	es.mu.Lock()
	defer es.mu.Unlock()
	return ep.retired && slices.ContainsFunc(es.shared[ep.key], (*endpoint).takes)
}

// reserve takes a reference to an endpoint, which the caller has to open if open is true. It
// fails if there may be no further endpoint.
func (es *endpoints) reserve(o *offer, src netip.Addr) (ep *endpoint, open bool, err error) {
	key := endpointKey{o.Name, o.domain, src}
	es.mu.Lock()
	defer es.mu.Unlock()
	if o.PerPeer {
		return es.reserveOwnLocked(ownKey(o, src))
	}
	ep = es.takingLocked(key)
	list := es.shared[key]
	if ep != nil && (!ep.saturated() || len(list) >= maxGenerations || !es.mayAddLocked(key, 2, 0)) {
		ep.refs++
		return ep, false, nil
	}
	if len(list) >= maxGenerations {
		if i := slices.IndexFunc(list, func(e *endpoint) bool { return e.room() == engine.RoomAvoided }); i >= 0 {
			list[i].refs++ // it works for all but a few peers
			return list[i], false, nil
		}
		return nil, false, fmt.Errorf("provider %s: %w", key.provider, errGenerations)
	}
	ep = &endpoint{key: key, spread: o.Spread, refs: 1, opened: make(chan struct{})}
	es.shared[key] = append(es.shared[key], ep)
	es.open[ep] = struct{}{}
	return ep, true, nil
}

// reserveOwnLocked is reserve for providers where each peer has an endpoint of its own.
func (es *endpoints) reserveOwnLocked(key endpointKey) (ep *endpoint, open bool, err error) {
	limit := es.t.maxShmPeers()
	if es.shmPeers >= limit {
		return nil, false, fmt.Errorf("%w: %d, none of which is idle (Transport.MaxShmPeers)", ErrTooManyShmPeers, limit)
	}
	es.shmPeers++
	ep = es.takeSpareLocked(key)
	if ep != nil && (!ep.takes() || !ep.named()) {
		es.closeSoon(ep)
		ep = nil
	}
	if ep == nil {
		for other := range es.spares { // of other domains
			if es.shmPeers+len(es.spares) > limit {
				es.closeSoon(es.takeSpareLocked(other))
			}
		}
		ep, open = es.newOwnLocked(key), true
	}
	ep.refs = 1
	return ep, open, nil
}

// newOwnLocked returns an endpoint for one peer, which the caller has to open.
func (es *endpoints) newOwnLocked(key endpointKey) *endpoint {
	if !es.cleaned {
		es.cleaned = true
		es.t.hands.start(func() { shmdir.Clean(shmdir.Dir) })
	}
	ep := &endpoint{key: key, own: true, retired: true, opened: make(chan struct{})}
	es.open[ep] = struct{}{}
	return ep
}

// takingLocked returns the endpoint for a further peer: the oldest that is not saturated or,
// failing that, the one with the fewest peers of those that take any; nil if none does. It
// closes those that have no peers left and that take none any more, or are not needed.
func (es *endpoints) takingLocked(key endpointKey) (ep *endpoint) {
	for _, old := range slices.Clone(es.shared[key]) {
		switch takes := old.takes(); {
		case takes && (ep == nil || ep.saturated() && old.refs < ep.refs):
			ep = old
		case old.refs == 0 && (!takes || ep.roomy()): // it became stale after its last peer had gone, or is not needed any more
			es.retireLocked(old)
			es.closeSoon(old)
		}
	}
	return ep
}

// mayAddLocked reports whether an endpoint may be opened that could be done without: together
// with the bytes that it takes, less than 1/part of the memory limit is in use, and none has
// failed within spareRetry.
func (es *endpoints) mayAddLocked(key endpointKey, part, takes int64) bool {
	if time.Since(es.failed[key]) < spareRetry {
		return false
	}
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
		if ep.engine, ep.err = engine.NewEndpoint(fab, es.t.engineConfig()); ep.err != nil {
			fab.Close()
		}
	}
	if ep.err != nil {
		es.retire(ep)
	}
}

// retire makes sure that an endpoint that is of no use is closed as soon as nobody has it.
func (es *endpoints) retire(ep *endpoint) {
	es.mu.Lock()
	defer es.mu.Unlock()
	es.failed[ep.key] = time.Now()
	es.retireLocked(ep)
}

func (es *endpoints) retireLocked(ep *endpoint) {
	ep.retired = true
	left := slices.DeleteFunc(slices.Clone(es.shared[ep.key]), func(e *endpoint) bool { return e == ep })
	if es.shared[ep.key] = left; len(left) == 0 {
		delete(es.shared, ep.key)
	}
}

// release gives a reference back. One endpoint without peers is kept for the next peer, if it
// takes any.
func (es *endpoints) release(ep *endpoint) {
	es.mu.Lock()
	ep.refs--
	if others := es.shared[ep.key]; ep.refs == 0 && !ep.own && (!ep.takes() ||
		slices.ContainsFunc(others, func(o *endpoint) bool { return o != ep && o.roomy() })) {
		es.retireLocked(ep)
	}
	last := ep.refs == 0 && ep.retired
	if last && ep.own {
		es.shmPeers--
	}
	es.mu.Unlock()
	if last {
		es.closeOne(ep)
	}
}

// closeIdle closes the endpoints that have no peers.
func (es *endpoints) closeIdle() { es.closeEach(es.takeIdle()) }

// takeIdle returns the endpoints that closeIdle closes. No peer gets them any more.
func (es *endpoints) takeIdle() []*endpoint {
	es.mu.Lock()
	defer es.mu.Unlock()
	list := es.takeSparesLocked()
	for ep := range es.open {
		if !ep.own && ep.refs == 0 { // others may be about to close it: its Close waits for them
			es.retireLocked(ep)
			list = append(list, ep)
		}
	}
	return list
}

// closeAll closes all endpoints, which nobody uses any more, and waits for others that are doing so.
func (es *endpoints) closeAll() {
	es.mu.Lock()
	es.takeSparesLocked() // and stop their timers
	list := keys(es.open)
	es.mu.Unlock()
	es.closeEach(list)
}

func (es *endpoints) closeEach(list []*endpoint) {
	for _, ep := range list {
		es.closeOne(ep)
	}
}

// closeSoon is closeOne in a goroutine that Transport.Close waits for. The caller must be in such
// a goroutine, too.
func (es *endpoints) closeSoon(ep *endpoint) { es.t.hands.start(func() { es.closeOne(ep) }) }

// closeOne closes an endpoint for good and keeps its counters.
func (es *endpoints) closeOne(ep *endpoint) {
	<-ep.opened
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

// newPeer reserves a peer on an endpoint, and makes room for it if necessary. An endpoint that
// has no peers and takes none is of no use: the next handshake gets another.
func (es *endpoints) newPeer(ep *endpoint, cfg engine.PeerConfig) (*engine.Peer, error) {
	var p *engine.Peer
	var err error
	es.t.links.makeRoom(func(l *link) bool { return l.ep == ep }, func() bool {
		if p, err = ep.engine.NewPeer(cfg); errors.Is(err, engine.ErrMemory) && es.dropSpares() {
			p, err = ep.engine.NewPeer(cfg)
		}
		return !errors.Is(err, engine.ErrMemory) && !errors.Is(err, engine.ErrFull)
	})
	if err != nil && ep.engine.Stats().Peers == 0 {
		es.retire(ep)
	}
	return p, err
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

// localIP returns the address to bind endpoints to for a connection.
func localIP(a net.Addr) netip.Addr { return addrPort(a).Addr() }
