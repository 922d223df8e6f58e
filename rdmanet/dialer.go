package rdmanet

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime/trace"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/bootstrap"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// Dialer holds the options of Dial. The zero value is ready to use. Invalid values make Dial
// fail with ErrConfig. The fields must not be changed after first use; the methods may be
// called concurrently.
type Dialer struct {
	// Timeout bounds each Dial. 0 means no limit but those of the system and of the
	// handshake (10 seconds). If it is negative, the time is over and Dial fails at once:
	// what is left of a program's own deadline may be negative.
	Timeout time.Duration
	// Deadline is when Dial fails at the latest; the zero time means none.
	Deadline time.Time
	// LocalAddr is the local address of the control connection, a *net.TCPAddr; nil
	// lets the system choose. The fabric uses the device that has this address, unless
	// Providers names another.
	LocalAddr net.Addr
	// KeepAliveConfig is for the TCP connections that Dial makes. Unless its Enable is set,
	// the control connection has keep-alive settings of its own, shorter than DeadAfter.
	KeepAliveConfig net.KeepAliveConfig
	// FallbackDelay is the delay between the address families of a host that has IPv4 and
	// IPv6 addresses, as in net.Dialer. 0 means 300 milliseconds. If it is negative, the
	// addresses are tried one after the other.
	FallbackDelay time.Duration
	// Resolver resolves names; nil means net.DefaultResolver. A name is resolved once for
	// each handshake. Dials that share a peer resolve it again every 30 seconds at most: they
	// use the peer for as long as its address is among those of the name.
	Resolver *net.Resolver
	// Control, unless it is nil, is called with each TCP socket before that is connected.
	// ControlContext takes its place if both are set: see net.Dialer. They see the control
	// connection and a fallback to TCP, never the fabric. A Dialer with Resolver, Control or
	// ControlContext shares no peers with other Dialers.
	Control        func(network, address string, c syscall.RawConn) error
	ControlContext func(ctx context.Context, network, address string, c syscall.RawConn) error
	// Providers lists the libfabric providers to use, in order of preference.
	// An entry may name a domain, that is a device, as "verbs;ofi_rxm/mlx5_0" and
	// "tcp;ofi_rxm/eth0" do; each side names its own. Without a domain the fabric uses
	// the device that has the control connection's local address or, where addresses do
	// not tell, the first one. If there are several entries for a provider, the first one
	// whose domain exists counts. The entry "auto" stands for the automatic choice: shared
	// memory on one host, then RDMA hardware (cxi, efa, verbs;ofi_rxm). Software providers
	// (tcp, net, tcp;ofi_rxm, udp;ofi_rxd) are used only if both sides name them: they open
	// a port of their own that strangers can attack, see docs/security.md. An empty list
	// means the environment variable RDMANET_PROVIDERS, a list of the same entries with
	// commas between them, or "auto" if that is not set. If both sides have a list, the
	// listener's order holds.
	Providers []string
	// EndpointPrefixes are where, besides the address of the control connection, a listener's
	// fabric endpoint may be that has an IP address: over tcp;ofi_rxm, net, udp;ofi_rxd and
	// verbs;ofi_rxm. Somewhere else it may be if the listener names a device in Providers, and
	// behind address translation, as of a Kubernetes Service. Otherwise a conn over such a
	// provider is refused, since a listener could have this process connect to anything.
	// Loopback, link-local, multicast and unspecified addresses are refused whatever the
	// prefixes say. An empty list means the environment variable RDMANET_ENDPOINT_PREFIXES, a list
	// with commas.
	EndpointPrefixes []netip.Prefix
	// Fallback says what to do about peers that no fabric reaches. By default, Dial fails.
	Fallback Fallback
	// AllowInsecureFallback allows FallbackTCP although TLSConfig is set. TLSConfig does not
	// protect the TCP connection that FallbackTCP makes.
	AllowInsecureFallback bool
	// TLSConfig protects the control connection; the listener must have one, too. nil means
	// no TLS. An empty ServerName stands for the dialed host. The bytes on the fabric are
	// not encrypted. Each handshake uses a copy in which NextProtos is "fabricnet/1"; the
	// copies share the ClientSessionCache. Dials share peers only if this pointer is the same,
	// and dials to several listeners of one process only if TLS comes to the same with each.
	TLSConfig *tls.Config
	// DisableReuse gives each conn a control connection of its own, for load balancers that
	// count TCP connections. That costs milliseconds per conn.
	DisableReuse bool
	// Transport holds what is shared with other dialers and listeners; nil means
	// DefaultTransport.
	Transport *Transport
	// Logger gets an event for each handshake, with what ConnInfo.Refused says: at debug
	// level, or at info level if Refused is not empty. It also gets events for fallbacks and
	// for peers that are lost. docs/operations.md lists the events. nil means no logging.
	// The Handler is called soon after the event, in a goroutine of its own. Nothing waits
	// for it but Transport.Close, for a second: see TransportStats.EventsDropped. The
	// Handler's Enabled must not block.
	Logger *slog.Logger
}

// Dial connects to a listener of this package at a TCP address. network is "rdma", "rdma4"
// or "rdma6"; "tcp", "tcp4" and "tcp6" mean the same. The net.Conn is a *Conn, or
// a *net.TCPConn if the Dialer has fallen back to TCP. The error
// is a *net.OpError, in which errors.Is finds the variables of this package.
func Dial(network, address string) (net.Conn, error) {
	return new(Dialer).Dial(network, address)
}

// DialTimeout is Dial with a time-out, which bounds the whole dial.
func DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	d := Dialer{Timeout: timeout}
	return d.Dial(network, address)
}

// Dial is like the function Dial, with the options of d.
func (d *Dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// DialContext is Dial with a context, which ends the attempt but not the conn. It succeeds
// when the listener's backlog has taken the conn. Once ctx has ended, it may take up to
// some 50 milliseconds to return, with an error that says what a handshake was waiting for.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	defer trace.StartRegion(ctx, "rdmanet.Dial").End()
	tcp, err := tcpNetwork(network)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	if err := unbubbled(); err != nil {
		return nil, opError("dial", nil, nil, err)
	}
	t := transportOr(d.Transport)
	if err := d.validate(t); err != nil {
		return nil, opError("dial", nil, nil, err)
	}
	end, err := t.begin()
	if err != nil {
		return nil, opError("dial", nil, nil, err)
	}
	defer end()
	ctx, cancel := d.limit(ctx)
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	c, err := d.dial(ctx, t, tcp, address)
	if err != nil {
		return nil, opError("dial", nil, nil, t.ended(ctx, err))
	}
	return c, nil
}

// limit applies Timeout and Deadline to a dial, which can also be canceled.
func (d *Dialer) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline := d.Deadline
	if d.Timeout != 0 {
		if t := time.Now().Add(d.Timeout); deadline.IsZero() || t.Before(deadline) {
			deadline = t
		}
	}
	if deadline.IsZero() {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline)
}

// until returns a context that also ends when the Transport is closed.
func (t *Transport) until(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(t.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// ended makes sure that the error of a dial that was ended from outside says so.
func (t *Transport) ended(ctx context.Context, err error) error {
	switch {
	case t.ctx.Err() != nil:
		return because(net.ErrClosed, err)
	case ctx.Err() != nil && !errors.Is(err, ctx.Err()):
		return because(ctx.Err(), err)
	}
	return err
}

// plan is one call of Dial.
type plan struct {
	*Dialer
	t                   *Transport
	network, host, port string
	name                nameKey
	addrs               []netip.AddrPort // where a cached peer may be
	resolved            bool             // addrs are not from the cache of names
	key                 dialKey
	rule                nameRule
	reached             atomic.Pointer[net.OpError] // the addresses of the handshake that connect has reached
	unused              unusedConn
}

// dialKey is what dials must have in common, besides the remote address, to share a
// control connection.
type dialKey struct {
	local                 netip.AddrPort
	providers, serverName string
	names                 string // of the nameRule
	tls                   *tls.Config
	owner                 *Dialer // set if it shares with no other Dialer
	netns                 netns   // of the thread
}

// linkKey identifies a peer in the cache.
type linkKey struct {
	remote netip.AddrPort
	dialKey
}

func (d *Dialer) dial(ctx context.Context, t *Transport, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	rule, err := d.nameRule()
	if err != nil {
		return nil, err
	}
	p := &plan{Dialer: d, t: t, network: network, host: host, port: port, rule: rule}
	p.key = dialKey{local: addrPort(d.LocalAddr), providers: strings.Join(wished(d.Providers), "\x00"), tls: d.TLSConfig, names: rule.key(), netns: threadNetns()}
	if d.Resolver != nil || d.Control != nil || d.ControlContext != nil {
		p.key.owner = d
	}
	p.name = nameKey{network, address, p.key.owner, p.key.netns}
	if d.TLSConfig != nil {
		if p.key.serverName = d.TLSConfig.ServerName; p.key.serverName == "" {
			p.key.serverName = serverName(host)
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, p.located(err)
	}
	defer p.unused.close()
	c, err := p.open(ctx)
	if err != nil {
		c, err = p.fallback(ctx, err)
	}
	return c, p.located(err)
}

// apart reports whether the thread is in another network namespace than the process. Then all
// that makes sockets is done by the goroutine of the dial, which is locked to that thread.
func (p *plan) apart() bool { return p.t.apart(p.key.netns) }

// located adds an address to an error that has none: a dial that ends early may not have
// tried one of the addresses yet, or not even have looked them up.
func (p *plan) located(err error) error {
	var oe *net.OpError
	if err == nil || errors.As(err, &oe) {
		return err
	}
	at, none := netip.ParseAddrPort(net.JoinHostPort(p.host, p.port))
	if len(p.addrs) > 0 {
		at = p.addrs[0]
	} else if none != nil {
		return err
	}
	return &net.OpError{Op: "dial", Addr: net.TCPAddrFromAddrPort(at), Err: err}
}

// open opens a conn over an existing link or a new one. A busy listener may send a new link away
// even at the last moment: open tries again while that is so.
func (p *plan) open(ctx context.Context) (c net.Conn, err error) {
	err = whileBusy(ctx, func() error {
		c, err = p.openOnce(ctx)
		return err
	})
	return c, err
}

// openOnce is open without trying again when the listener is busy. If an existing link
// fails, the listener that refuses on it may have been replaced by another, or the link's
// process may be gone: then the address gets a second try.
func (p *plan) openOnce(ctx context.Context) (net.Conn, error) {
	r, reused, err := p.route(ctx, nil)
	if err != nil {
		return nil, err
	}
	c, err := p.openOn(ctx, r, reused)
	if err == nil || !reused || ctx.Err() != nil || errors.Is(err, ErrMemory) { // another link would need even more
		return c, err
	}
	refused, instead := err, r
	if !errors.Is(err, syscall.ECONNREFUSED) {
		p.t.links.drop(r.link)
		instead = nil
	}
	switch r, reused, err = p.route(ctx, instead); {
	case errors.Is(err, errSameListener):
		return nil, refused
	case err != nil:
		return nil, err
	}
	return p.openOn(ctx, r, reused)
}

// openOn opens a conn over a route whose link the caller uses, and ends that use.
func (p *plan) openOn(ctx context.Context, r *route, reused bool) (net.Conn, error) {
	c, err := r.open(ctx, reused)
	p.t.links.unuse(r.link)
	if err != nil {
		r.link.unused()
		return nil, &net.OpError{Op: "dial", Source: r.link.local, Addr: r.remote, Err: err}
	}
	return c.handOut(), nil
}

// A listener that is busy is asked again, after about firstPause at first and then after twice
// as long each time. The pauses are random, since many dials may have been sent away together.
const (
	firstPause = 50 * time.Millisecond
	mostPause  = time.Second
)

// whileBusy calls f until the listener is not busy, for at most as long as a handshake may take.
func whileBusy(ctx context.Context, f func() error) error {
	last := time.Now().Add(bootstrap.DefaultTimeout)
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		err := f()
		if !errors.Is(err, ErrBusy) || time.Now().Add(pause).After(last) {
			return err
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return because(ctx.Err(), err)
		}
	}
}

// connect makes a new route. It tries again while the listener is busy.
func (p *plan) connect(ctx context.Context) (r *route, err error) {
	err = whileBusy(ctx, func() error {
		r, err = p.handshake(ctx)
		return err
	})
	return r, err
}

// handshake makes a new route, with the caller counted as a user of its link, unless that is known to fail: without libfabric there is no point
// in asking the peer, and a handshake that has lately cost its time is not repeated if there is
// a fallback.
func (p *plan) handshake(ctx context.Context) (*route, error) {
	defer trace.StartRegion(ctx, "rdmanet.Dial.handshake").End()
	if s, ok := p.t.fabric.(fabric.Supporter); ok {
		if err := s.Supported(); err != nil {
			return nil, err
		}
	}
	if err := p.resolve(ctx); err != nil {
		return nil, err
	}
	if err := p.knownForeign(p.addrs...); err != nil {
		return nil, err
	}
	nc, err := p.dialTCP(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.knownForeign(addrPort(nc.RemoteAddr())); err != nil { // one of several
		p.unused.put(nc)
		return nil, err
	}
	var r *route
	if p.apart() {
		onAnyThread(func() { r, err = p.handshakeOn(ctx, nc) })
		return r, err
	}
	return p.handshakeOn(ctx, nc)
}

// handshakeOn is what of handshake needs no further socket.
func (p *plan) handshakeOn(ctx context.Context, nc net.Conn) (*route, error) {
	cfg := p.t.bootstrapConfig(p.KeepAliveConfig)
	if p.TLSConfig != nil {
		cfg.TLS = bootstrap.ClientTLS(p.TLSConfig, p.key.serverName)
	}
	local, remote := newAddr(nc.LocalAddr()), newAddr(nc.RemoteAddr())
	if p.Fallback != FallbackNone {
		_, _, _ = p.t.offersIn(ctx, p.key.netns, addrPort(local).Addr(), p.Providers) // loads libfabric, which must not count as the listener's time
		cfg.Timeout = fallbackPatience(ctx)
	}
	p.reached.Store(&net.OpError{Op: "dial", Source: local, Addr: remote})
	b := &binder{t: p.t, nc: nc, netns: p.key.netns, key: p.key, providers: p.Providers, fallback: p.Fallback != FallbackNone, nameRule: p.rule, logger: p.Logger}
	j := &b.joining
	if !p.DisableReuse {
		j.approach = p.t.links.approach(pairKey{addrPort(local).Addr(), addrPort(remote).Addr(), p.KeepAliveConfig, p.key})
		defer p.t.links.leave(j.approach)
	}
	s, binding, err := bootstrap.Dial(ctx, nc, cfg, b)
	joined := err == nil && binding == nil
	if j.link != nil && !joined {
		p.t.links.unuse(j.link)
	}
	patient := cfg.Timeout == 0 || cfg.Timeout >= maxPatience
	if ctx.Err() == nil && (patient || !errors.Is(err, bootstrap.ErrMute)) {
		p.t.isForeign(linkKey{addrPort(remote), p.key}, err)
	}
	if err != nil {
		p.t.counters.add(p.t.counters.failed, failureReason(err))
		return nil, &net.OpError{Op: "dial", Source: local, Addr: remote, Err: err}
	}
	if joined {
		return &route{link: j.link, listener: j.listener, remote: remote, joined: true}, nil
	}
	l := binding.(*link)
	p.t.links.made(j.approach, l)
	l.announce()
	s.Start(l)
	return &route{link: l, listener: s.Remote().Listener, remote: remote}, nil
}
