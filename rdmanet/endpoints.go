package rdmanet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"

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

// endpoint is an open fabric endpoint. Most are shared by all peers that are
// reached from one local address, and live as long as the Transport; those of
// providers that want one for each peer live as long as their peer.
type endpoint struct {
	key    endpointKey
	own    bool          // serves a single peer
	opened chan struct{} // closed when what follows is set
	err    error
	engine *engine.Endpoint
	fab    fabric.Endpoint
	// worn: a peer fell silent. What the provider still holds of it, such as a TCP
	// connection that was cut (tcp;ofi_rxm) or the numbers of packets (udp;ofi_rxd), would
	// stand in the way of a new dial between these two endpoints.
	worn atomic.Bool

	// Guarded by Transport.mu.
	refs    int
	retired bool // not to be used for further peers
}

// endpoint returns an endpoint for one more peer; release gives it back.
func (t *Transport) endpoint(ctx context.Context, o *offer, src netip.Addr) (*endpoint, error) {
	key := endpointKey{o.Name, o.domain, src}
	ep, open, err := t.reserve(key, o.PerPeer)
	for err != nil && t.makeRoom(func(l *link) bool { return l.ep.own && l.ep.key.provider == o.Name }) {
		ep, open, err = t.reserve(key, o.PerPeer)
	}
	if err != nil {
		return nil, err
	}
	if open {
		ep.open(t)
		close(ep.opened)
	}
	select {
	case <-ep.opened:
		err = ep.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		t.release(ep)
		return nil, err
	}
	return ep, nil
}

// reserve takes a reference to an endpoint, which the caller has to open if it
// is the first. It fails if there may be no further endpoint for a single peer.
func (t *Transport) reserve(key endpointKey, own bool) (ep *endpoint, open bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if own {
		if !t.cleaned {
			t.cleaned = true
			t.hands.Go(func() { shmdir.Clean(shmdir.Dir) })
		}
		limit := orDefault(t.MaxShmPeers, DefaultMaxShmPeers)
		if t.shmPeers >= limit {
			return nil, false, fmt.Errorf("provider %s: %d peers use it, more are not allowed (Transport.MaxShmPeers)", key.provider, limit)
		}
		t.shmPeers++
		ep = &endpoint{key: key, own: true, retired: true, refs: 1, opened: make(chan struct{})}
		t.open[ep] = struct{}{}
		return ep, true, nil
	}
	if ep = t.endpoints[key]; ep != nil && ep.worn.Load() { // and in use: see release
		t.retireLocked(ep)
		ep = nil
	}
	if ep == nil {
		ep, open = &endpoint{key: key, opened: make(chan struct{})}, true
		t.endpoints[key] = ep
		t.open[ep] = struct{}{}
	}
	ep.refs++
	return ep, open, nil
}

func (ep *endpoint) open(t *Transport) {
	ep.fab, ep.err = t.fabric.Open(fabric.Join(ep.key.provider, ep.key.domain), ep.key.src)
	if ep.err == nil {
		fab := ep.fab
		if ep.own {
			fab = newTwin(fab)
		}
		if ep.engine, ep.err = engine.NewEndpoint(fab, t.engineConfig()); ep.err != nil {
			fab.Close()
		}
	}
	if ep.err != nil {
		t.retire(ep)
	}
}

// retire has the endpoint closed as soon as nobody uses it.
func (t *Transport) retire(ep *endpoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.retireLocked(ep)
}

func (t *Transport) retireLocked(ep *endpoint) {
	ep.retired = true
	if t.endpoints[ep.key] == ep {
		delete(t.endpoints, ep.key)
	}
}

// release gives a reference back.
func (t *Transport) release(ep *endpoint) {
	t.mu.Lock()
	ep.refs--
	if ep.worn.Load() {
		t.retireLocked(ep)
	}
	last := ep.refs == 0 && ep.retired
	if last && ep.own {
		t.shmPeers--
	}
	t.mu.Unlock()
	if last {
		t.closeEndpoint(ep)
	}
}

// closeEndpoints closes the shared endpoints that match, which is asked with
// t.mu held.
func (t *Transport) closeEndpoints(match func(*endpoint) bool) {
	var list []*endpoint
	t.mu.Lock()
	for _, ep := range t.endpoints {
		if match(ep) {
			t.retireLocked(ep)
			list = append(list, ep)
		}
	}
	t.mu.Unlock()
	for _, ep := range list {
		t.closeEndpoint(ep)
	}
}

// closeEndpoint ends an endpoint for good and keeps its counters.
func (t *Transport) closeEndpoint(ep *endpoint) {
	<-ep.opened
	var s ProviderStats
	if ep.engine != nil {
		_ = ep.engine.Close() // of no use any more, whatever it says
		s = providerStats(ep.engine.Stats())
		s.Peers, s.Conns, s.Endpoints, s.LandingMemory = 0, 0, 0, 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, first := t.open[ep]; first && ep.engine != nil {
		t.past[ep.key.provider] = t.past[ep.key.provider].add(s)
	}
	delete(t.open, ep)
}

// newPeer reserves a peer on an endpoint. An endpoint that has no peers and
// takes none is broken: the next handshake gets another.
func (t *Transport) newPeer(ep *endpoint, cfg engine.PeerConfig) (*engine.Peer, error) {
	p, err := ep.engine.NewPeer(cfg)
	for (errors.Is(err, engine.ErrMemory) || errors.Is(err, engine.ErrFull)) && t.makeRoom(func(l *link) bool { return l.ep == ep }) {
		p, err = ep.engine.NewPeer(cfg)
	}
	if err != nil && ep.engine.Stats().Peers == 0 {
		t.retire(ep)
	}
	return p, err
}

// unlink removes the name of memory that the endpoint shares with its peer, who
// has attached to it: a process that is killed then leaves nothing in /dev/shm.
func (ep *endpoint) unlink() {
	if u, ok := ep.fab.(interface{ Unlink() error }); ok && ep.own {
		_ = u.Unlink() // Close tries again
	}
}

// localIP is the address to bind endpoints to for a connection.
func localIP(a net.Addr) netip.Addr { return addrPort(a).Addr() }
