package rdmanet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/bootstrap"
	"github.com/seed202c38ff/fabricnet/internal/engine"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// binder is what one handshake knows of this side.
type binder struct {
	t         *Transport
	nc        net.Conn
	netns     netns   // in which nc was made
	key       dialKey // on the dialling side
	providers []string
	listener  *listener // nil on the dialling side
	fallback  bool      // the dialling side can fall back to TCP
	nameRule  nameRule
	logger    *slog.Logger
	newcomer  *newcomer // in the listener's admission
	links     []*link   // on the listening side: those of all providers that were tried
	offers    []offer
	used      atomic.Bool // a conn was opened
	joining   joining
}

var _ bootstrap.Binder = (*binder)(nil)

func (b *binder) Hello() framing.Hello {
	h := framing.Hello{Process: b.t.process, Host: b.t.host, UID: uint32(os.Geteuid())}
	if b.t.hostErr != nil {
		h.HostUnknown = b.t.hostErr.Error()
	}
	if b.listener != nil {
		h.Listener = b.listener.number
	}
	if b.joining.approach != nil {
		b.joining.asks = b.t.links.mayJoin(b.joining.approach)
		h.Joins = b.joining.asks
	}
	return h
}

func (b *binder) Offer(ctx context.Context, local netip.Addr, h *framing.Hello) error {
	offers, unoffered, err := b.t.offersIn(ctx, b.netns, local, b.providers)
	if b.empty(err, unoffered) {
		if errors.Is(err, fabric.ErrUnsupported) {
			unoffered = []string{bootstrap.NoLibrary + err.Error()} // so that the other side learns of it
		}
		err = nil
	}
	if err != nil {
		return err
	}
	if peer := addrPort(b.nc.RemoteAddr()).Addr(); local != peer && !local.IsLoopback() { // probably on another host
		unoffered = slices.DeleteFunc(unoffered, b.t.withinHost(local))
	}
	if left, failing := b.working(offers, local); len(left) > 0 || b.fallback {
		offers, unoffered = left, append(failing, unoffered...)
	}
	b.offers = offers[:min(len(offers), framing.MaxOffers)]
	h.Unoffered = unoffered
	for _, p := range b.offers {
		h.Offers = append(h.Offers, bootstrap.OfferOf(&p.ProviderInfo))
	}
	if b.t.offer != nil {
		b.t.offer(h)
	}
	return nil
}

// working leaves out the providers that have recently failed towards the peer, and returns
// which, with the reasons. The listening side leaves none out.
func (b *binder) working(offers []offer, local netip.Addr) (left []offer, failing []string) {
	if b.listener != nil {
		return offers, nil
	}
	for _, o := range offers {
		if f := b.t.recentFailure(b.path(o, local)); f != nil {
			failing = append(failing, fmt.Sprintf("%s: %v", o.Name, f))
		} else {
			left = append(left, o)
		}
	}
	return left, failing
}

// path returns the key by which the dialling side remembers an offer's failure.
func (b *binder) path(o offer, local netip.Addr) failureKey {
	key := linkKey{addrPort(b.nc.RemoteAddr()), b.key}
	key.local = netip.AddrPortFrom(local, 0) // even if LocalAddr is not set: the device may depend on it
	return newFailureKey(fabric.Join(o.Name, o.domain), key)
}

// empty reports whether an empty offer is more useful than err. From the listening side it
// tells the dialling side more than a rejection does. To the dialling side it brings an
// answer that lists what the two could use.
func (b *binder) empty(err error, unoffered []string) bool {
	switch {
	case errors.Is(err, fabric.ErrNoProvider):
		return b.listener != nil || len(unoffered) > 0 && hasAuto(b.t.wishes(b.providers))
	case errors.Is(err, fabric.ErrUnsupported):
		return b.listener != nil
	}
	return false
}

func (b *binder) Authorize(ctx context.Context, peer *bootstrap.Peer) error {
	if b.listener == nil {
		return nil
	}
	if err := b.authorize(ctx, peer); err != nil {
		return err
	}
	b.listener.admission.authorize(b.newcomer)
	return b.listener.makeRoom(b.newcomer)
}

// errNoAnswer stands for the answer of an Authorize that ended its goroutine instead.
var errNoAnswer = errors.New("Authorize did not return")

// authorize asks the user's Authorize. A call that does not return when ctx ends holds up no
// other handshake, but keeps its place among the maxAsking calls.
func (b *binder) authorize(ctx context.Context, peer *bootstrap.Peer) error {
	ask, asking := b.listener.cfg.Authorize, b.listener.admission.asking
	if ask == nil {
		return nil
	}
	info := PeerInfo{
		LocalAddr: newAddr(b.nc.LocalAddr()), RemoteAddr: newAddr(b.nc.RemoteAddr()), TLS: copyOf(peer.TLS),
	}
	select {
	case asking <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	answer := make(chan error, 1)
	go func() {
		err := errNoAnswer
		defer func() {
			<-asking
			answer <- err
		}()
		err = ask(ctx, info)
	}()
	select {
	case err := <-answer:
		if err != nil { // its text only: whatever it wraps, it is a refusal
			err = fmt.Errorf("%w: %s", ErrUnauthorized, fmt.Sprint(err))
		}
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// copyOf returns a copy that the user may change.
func copyOf(state *tls.ConnectionState) *tls.ConnectionState {
	if state == nil {
		return nil
	}
	c := *state
	return &c
}

func (b *binder) Expect(offer framing.Offer, local netip.Addr) {
	if i := b.index(offer.Provider); b.offers[i].PerPeer {
		b.t.endpoints.openEarly(&b.offers[i], local)
	}
}

// index returns the place of a provider among those that are on offer.
func (b *binder) index(provider string) int {
	return slices.IndexFunc(b.offers, func(own offer) bool { return own.Name == provider })
}

func (b *binder) Prepare(ctx context.Context, chosen framing.Offer, peer *bootstrap.Peer, local netip.Addr, page *bootstrap.Page) (bootstrap.Binding, error) {
	i := b.index(chosen.Provider)
	l := &link{
		t: b.t, logger: b.logger, used: &b.used, settled: make(chan struct{}),
		tls: peer.TLS, nameRule: b.nameRule, path: b.path(b.offers[i], local), local: newAddr(b.nc.LocalAddr()), remote: newAddr(b.nc.RemoteAddr()),
	}
	cfg := engine.PeerConfig{Idle: l.unused, Lost: l.lost, Gone: l.gone, NoMemory: l.noMemory}
	if page != nil {
		cfg.Memory = func(n pool.SharedName) (*pool.Slab, error) { return pool.OpenSlab(b.t.budget, page.Proc(), n) }
	}
	if b.listener != nil {
		l.first = &meeting{b.listener, b.newcomer, l.local}
		l.met = map[uint32]*meeting{b.listener.number: l.first}
		cfg.Accept, cfg.Unproven = l.accept, true
		if err := b.listener.admission.place(ctx, b.newcomer); err != nil {
			return nil, err
		}
	}
	if err := b.t.endpoints.place(ctx, &b.offers[i], local, cfg, l); err != nil {
		return nil, err
	}
	if b.listener != nil {
		b.listener.admission.proves(b.newcomer, l.peer)
		b.links = append(b.links, l)
	}
	b.t.links.add(l)
	return l, nil
}

// bootstrapConfig returns the configuration of t's handshakes and sessions.
func (t *Transport) bootstrapConfig(alive net.KeepAliveConfig) bootstrap.Config {
	return bootstrap.Config{Heartbeat: t.heartbeat(), DeadAfter: t.DeadAfter, Schedule: &t.schedule, KeepAlive: alive}
}
