package rdmanet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/bootstrap"
)

const (
	// DefaultBacklog is how many conns may wait for Accept.
	DefaultBacklog = 128
	// DefaultMaxPeers is how many peer processes a listener has at most.
	DefaultMaxPeers = 8192
	// DefaultMaxPeersPerHost is how many of them may be from one host.
	DefaultMaxPeersPerHost = 512
	// DefaultHandshakeTimeout bounds each handshake.
	DefaultHandshakeTimeout = 10 * time.Second
)

// PeerInfo is what a listener knows of a peer that asks to be let in.
type PeerInfo struct {
	// LocalAddr and RemoteAddr are those of the control connection, of type *net.TCPAddr.
	LocalAddr, RemoteAddr net.Addr
	// TLS is nil without TLSConfig. It has the peer's certificates if TLSConfig.ClientAuth
	// asks for them. They are verified if ClientAuth says so: then VerifiedChains is not empty.
	TLS *tls.ConnectionState
}

// ListenConfig holds the options of Listen. The zero value is ready to use. Invalid values
// make Listen fail with ErrConfig. It must not be changed while Listen runs.
type ListenConfig struct {
	// KeepAliveConfig is for the TCP connections. Unless its Enable is set, control
	// connections have keep-alive settings of their own, shorter than DeadAfter.
	KeepAliveConfig net.KeepAliveConfig
	// Backlog is how many conns may wait for Accept, up to 1<<20; further ones are
	// refused. 0 means DefaultBacklog.
	Backlog int
	// Providers lists the libfabric providers to use, in order of preference, and may name
	// domains: see Dialer.Providers. An empty list means the environment variable
	// RDMANET_PROVIDERS, or "auto" if that is not set.
	Providers []string
	// EndpointPrefixes are where, besides the address that it dials from, a dialer's fabric
	// endpoint may be: see Dialer.EndpointPrefixes.
	EndpointPrefixes []netip.Prefix
	// AcceptTCP also accepts clients that speak plain TCP, on the same port. They are told
	// apart by the first bytes that they send, and accepted when these have come: it is for
	// protocols in which clients speak first, such as HTTP, gRPC and whatever runs over TLS.
	// A plain client that waits for the server to speak, as in SMTP, FTP or MySQL, is never
	// accepted. Its connection is closed after HandshakeTimeout, which counts as a handshake
	// failure by "timeout"; meanwhile it holds up no others. The same happens to a Dialer
	// that falls back to TCP and then waits. Servers of such protocols need two listeners:
	// this one without AcceptTCP, since over a fabric either side may speak first, and a
	// plain net.Listener on another port. HandshakeTimeout no longer applies to a plain
	// client that has been accepted. TLSConfig and Authorize are not applied to plain
	// clients, and nothing bounds their number. Accept returns them as the *net.TCPConn
	// that they are; they are the program's alone.
	AcceptTCP bool
	// Control, unless it is nil, is called with the TCP socket before that is bound, as in
	// net.ListenConfig.
	Control func(network, address string, c syscall.RawConn) error
	// TLSConfig protects the control connection: dialers without TLS are refused. nil means
	// no TLS. The bytes on the fabric are not encrypted. Listen copies TLSConfig, as net/http
	// does: change the keys for session tickets through GetConfigForClient. NextProtos is
	// replaced by "fabricnet/1", also in what GetConfigForClient returns: clients that speak
	// only other protocols are refused.
	TLSConfig *tls.Config
	// Authorize, unless it is nil, is called for each peer process, also for one that is a
	// peer of another listener of the Transport already, after TLS and before libfabric is
	// asked for anything on the peer's account. An error refuses the peer: its text is sent to
	// the peer, whose Dial fails with ErrUnauthorized, whatever the error wraps. A panic ends
	// the process. Up to 64 goroutines call Authorize at once. The context ends after
	// HandshakeTimeout and with Listener.Close and Transport.Close. Then the handshake is over,
	// whatever Authorize returns and even if it does not return. Close does not wait for it.
	// Calls that do not return keep others waiting once there are 64.
	Authorize func(ctx context.Context, peer PeerInfo) error
	// HandshakeTimeout bounds each handshake. It is at least a millisecond; 0 means
	// DefaultHandshakeTimeout. A handshake over shared memory takes some 2 milliseconds, or
	// 10 if an endpoint has to be opened.
	HandshakeTimeout time.Duration
	// MaxPeers bounds how many peer processes the listener has at a time, whatever the number
	// of their conns. It is at most 1<<20; 0 means DefaultMaxPeers. MaxPeersPerHost bounds
	// those with one IPv4 address, or in one /64 of IPv6; 0 means DefaultMaxPeersPerHost. To
	// make room, the listener lets go of a peer that has had no conns for a second or longer;
	// that peer connects anew when it dials again. If there is none, the dialer gets
	// ErrTooManyPeers.
	MaxPeers, MaxPeersPerHost int
	// Transport holds what is shared with other listeners and dialers; nil means
	// DefaultTransport.
	Transport *Transport
	// Logger gets events for failed handshakes and for conns that are refused, for each reason
	// at most once in ten seconds above debug level. It gets other events as Dialer.Logger
	// does. nil means no logging.
	Logger *slog.Logger
}

// Listen listens on a TCP address for peers that use rdmanet. network is "rdma", "rdma4" or
// "rdma6"; "tcp", "tcp4" and "tcp6" mean the same. The net.Listener is a *Listener. The error
// is a *net.OpError, in which errors.Is finds the variables of this package.
func Listen(network, address string) (net.Listener, error) {
	return new(ListenConfig).Listen(context.Background(), network, address)
}

// Listen is like the function Listen, with the options of lc. The context ends the attempt to
// listen, not the Listener. Listen fails if none of the providers is available, unless
// AcceptTCP is set.
func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	tcp, err := tcpNetwork(network)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	if err := unbubbled(); err != nil {
		return nil, opError("listen", nil, nil, err)
	}
	t := transportOr(lc.Transport)
	if err := lc.validate(t); err != nil {
		return nil, opError("listen", nil, nil, err)
	}
	nlc := net.ListenConfig{KeepAliveConfig: lc.KeepAliveConfig, Control: lc.Control}
	ln, err := nlc.Listen(ctx, tcp, address)
	if err != nil {
		return nil, opError("listen", nil, nil, err)
	}
	return lc.start(ctx, t, ln, zoneOf(address))
}

// ListenOn is Listen on an existing TCP listener, such as one that systemd or a parent process
// has handed down (net.FileListener). It owns ln from then on, and closes ln if it fails. The
// error is ErrConfig if something is wrong with ln; that ln is closed is found by Accept only.
//
// ln is a *net.TCPListener, or a listener around one. The Addr of such a listener must be a
// *net.TCPAddr, and so must both addresses of each conn that it accepts; other conns are closed
// and count as failed handshakes. So are conns of type *tls.Conn: conns must carry the bytes as
// they are, and TLS has its place in TLSConfig. If AcceptTCP is set, ln must be a
// *net.TCPListener. Control is not called, KeepAliveConfig does not apply to plain TCP clients,
// and a deadline that ln has is removed.
func (lc *ListenConfig) ListenOn(ln net.Listener) (net.Listener, error) {
	err := unbubbled()
	t := lc.Transport
	if err == nil {
		t = transportOr(t)
		err = lc.validate(t)
	}
	if err == nil {
		err = lc.adoptable(ln)
	}
	if err != nil {
		if ln != nil {
			ln.Close()
		}
		return nil, opError("listen", nil, nil, err)
	}
	if d, ok := ln.(interface{ SetDeadline(time.Time) error }); ok {
		_ = d.SetDeadline(time.Time{})
	}
	return lc.start(context.Background(), t, ln, "")
}

// adoptable returns what is wrong with a listener that somebody else has made.
func (lc *ListenConfig) adoptable(ln net.Listener) error {
	const field = "ListenConfig.ListenOn"
	tcp, ok := ln.(*net.TCPListener)
	if ln == nil || ok && tcp == nil {
		return invalid(field, "there is no listener; use a *net.TCPListener")
	}
	_, ours := ln.(*Listener)
	if a := ln.Addr(); ours || addrPort(a) == (netip.AddrPort{}) {
		return invalid(field, "a %T at %v does not listen on TCP; use a *net.TCPListener", ln, a)
	}
	if lc.AcceptTCP && !ok {
		return invalid(field, "plain TCP clients of a %T cannot be served; use a *net.TCPListener, or leave AcceptTCP out", ln)
	}
	return nil
}

// overTCP makes sure that a connection that somebody else has accepted has TCP addresses, and
// no TLS that nobody here knows of.
func overTCP(nc net.Conn) error {
	if _, ok := nc.(*tls.Conn); ok {
		return errors.New("ListenOn was given a listener that does TLS itself: set ListenConfig.TLSConfig instead")
	}
	if _, ok := nc.(*Conn); ok {
		return errors.New("ListenOn was given a listener over a fabric: use a *net.TCPListener instead")
	}
	for _, a := range []net.Addr{nc.LocalAddr(), nc.RemoteAddr()} {
		if addrPort(a) == (netip.AddrPort{}) {
			return fmt.Errorf("%T has the address %v, and no *net.TCPAddr", nc, a)
		}
	}
	return nil
}

// start listens on ln, at an address in zone, and closes it if it fails.
func (lc *ListenConfig) start(ctx context.Context, t *Transport, ln net.Listener, zone string) (net.Listener, error) {
	l := newListener(t, lc, ln)
	l.cfg.TLSConfig = bootstrap.ServerTLS(lc.TLSConfig)
	l.addr = net.TCPAddrFromAddrPort(inZone(addrPort(l.addr), zone))
	offers, _, err := t.offersIn(ctx, l.netns, addrPort(l.addr).Addr(), lc.Providers)
	var unusable error // why only plain TCP can be served
	if lc.AcceptTCP && (errors.Is(err, ErrUnsupported) || errors.Is(err, ErrProviderUnavailable)) {
		unusable, err = err, nil
	}
	if err == nil {
		err = t.listen(l)
	}
	if err != nil {
		ln.Close()
		return nil, opError("listen", nil, l.addr, err)
	}
	if len(offers) > 0 {
		t.endpoints.openEarly(&offers[0], addrPort(l.addr).Addr())
	}
	if unusable != nil {
		t.events.tell(ctx, lc.Logger, slog.LevelWarn, eventNothing, slog.String("listener", l.addr.String()), slog.Any("error", unusable))
	}
	return l.handOut(), nil
}

// listen registers a listener and starts it.
func (t *Transport) listen(l *listener) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return net.ErrClosed
	}
	t.lastID++
	l.number = t.lastID
	t.listeners[l] = struct{}{}
	l.served.Go(l.serve)
	return nil
}
