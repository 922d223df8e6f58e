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
	// DefaultMaxPeersPerHost is how many of them are from one host.
	DefaultMaxPeersPerHost = 512
	// DefaultHandshakeTimeout bounds each handshake.
	DefaultHandshakeTimeout = 10 * time.Second
)

// PeerInfo is what a listener knows of a peer that asks to be let in.
type PeerInfo struct {
	LocalAddr, RemoteAddr net.Addr
	// TLS is nil without TLSConfig. It has the peer's certificates if TLSConfig.ClientAuth
	// asks for them, and they are verified if it says so: then VerifiedChains is not empty.
	TLS *tls.ConnectionState
}

// ListenConfig has the options of Listen. The zero value is ready to use; values that
// make no sense are an ErrConfig. It must not be changed while Listen runs.
type ListenConfig struct {
	// KeepAliveConfig is for the TCP connections. The control connection has its own,
	// shorter than DeadAfter, unless this one says Enable.
	KeepAliveConfig net.KeepAliveConfig
	// Backlog is how many conns may wait for Accept, up to 1<<20; further ones are
	// refused. 0 means DefaultBacklog.
	Backlog int
	// Providers lists the libfabric providers to use, in order of preference,
	// and may name domains: see Dialer.Providers. Empty means what the
	// environment variable RDMANET_PROVIDERS says, else "auto".
	Providers []string
	// AcceptTCP also accepts clients that speak plain TCP on the same port.
	// They are told apart by the first bytes that they send, and accepted when
	// these have come: it is for protocols in which clients speak first, such
	// as HTTP, gRPC and whatever runs over TLS. A plain client that waits for the server
	// to speak, as in SMTP, FTP or MySQL, is never accepted: its connection is closed after
	// HandshakeTimeout, which counts as a handshake failure by "timeout", and holds up no
	// others meanwhile. The same befalls a Dialer that falls back to TCP and then waits.
	// Servers of such protocols take two listeners: this one without AcceptTCP, as over a
	// fabric either side may speak first, and a plain net.Listener on another port.
	// Accepted plain clients have no HandshakeTimeout any more. TLSConfig and Authorize are
	// not applied to plain clients, and nothing bounds their number.
	AcceptTCP bool
	// Control is called with the TCP socket before it is bound, as in net.ListenConfig.
	Control func(network, address string, c syscall.RawConn) error
	// TLSConfig protects the control connection: dialers without TLS are refused. The
	// bytes on the fabric are not encrypted. Listen copies it, as net/http does: keys for
	// session tickets are changed through GetConfigForClient. NextProtos, there as well, is
	// replaced by "fabricnet/1": clients that speak other protocols only are refused.
	TLSConfig *tls.Config
	// Authorize is asked for each peer process, after TLS. The text of its error is sent to
	// the peer, whose Dial fails with an ErrUnauthorized whatever that error wraps; a panic
	// ends the process. It is called by up to 64 goroutines at once. The context ends
	// after HandshakeTimeout and with Listener.Close and Transport.Close, at which the
	// handshake is over, whatever Authorize returns and even if it does not; Close does
	// not wait for it. Calls that do not return keep others waiting once there are 64.
	Authorize func(ctx context.Context, peer PeerInfo) error
	// HandshakeTimeout bounds each handshake, at least a millisecond, 0 for
	// DefaultHandshakeTimeout. A handshake over shared memory takes some 2 milliseconds, or
	// 10 if an endpoint has to be opened.
	HandshakeTimeout time.Duration
	// MaxPeers bounds how many peer processes the listener has at a time, whatever the
	// number of their conns, up to 1<<20, 0 for DefaultMaxPeers. MaxPeersPerHost bounds those
	// with one IPv4 address, or in one /64 of IPv6; 0 means DefaultMaxPeersPerHost. To make
	// room the listener lets a peer go that has had no conns for a second or longer, which
	// connects anew when it dials again. If there is none, the dialer gets ErrTooManyPeers.
	MaxPeers, MaxPeersPerHost int
	// Transport is shared with other listeners and dialers; nil means
	// DefaultTransport.
	Transport *Transport
	// Logger is told of failed handshakes and of conns that are refused, each at most
	// once in ten seconds above debug level, and of the rest as Dialer.Logger is.
	// Nil is silent.
	Logger *slog.Logger
}

// Listen listens on a TCP address for peers that use rdmanet. network is "rdma",
// "rdma4" or "rdma6", or "tcp", "tcp4" or "tcp6" with the same meaning. It
// returns a *Listener.
func Listen(network, address string) (net.Listener, error) {
	return new(ListenConfig).Listen(context.Background(), network, address)
}

// Listen is the function of that name with the options of lc. The context ends
// the attempt to listen, not the Listener. It fails if none of the providers is
// available, unless AcceptTCP is set.
func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	tcp, err := tcpNetwork(network)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
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

// ListenOn is Listen on a TCP listener that is there already, such as one that systemd or
// a parent process has handed down (net.FileListener). It owns ln from then on, and closes
// it if it fails. ln is a *net.TCPListener, or a listener around one: then its Addr must be
// a *net.TCPAddr, and so must be both addresses of each conn that it accepts, or that is
// closed and counts as a failed handshake, as is a *tls.Conn: its conns must carry the bytes
// as they are, and TLS has its place in TLSConfig. Where AcceptTCP is set, ln must be a
// *net.TCPListener. What is found wrong with ln is an ErrConfig; that it is closed, Accept
// finds. Control is not called, KeepAliveConfig is not for plain TCP clients, and a deadline
// that ln has is taken away.
func (lc *ListenConfig) ListenOn(ln net.Listener) (net.Listener, error) {
	t := transportOr(lc.Transport)
	err := lc.validate(t)
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

// adoptable finds what is wrong with a listener that somebody else has made.
func (lc *ListenConfig) adoptable(ln net.Listener) error {
	const field = "ListenConfig.ListenOn"
	tcp, ok := ln.(*net.TCPListener)
	if ln == nil || ok && tcp == nil {
		return invalid(field, "there is no listener; use a *net.TCPListener")
	}
	if a := ln.Addr(); addrPortOfTCP(a) == (netip.AddrPort{}) {
		return invalid(field, "a %T at %v does not listen on TCP; use a *net.TCPListener", ln, a)
	}
	if lc.AcceptTCP && !ok {
		return invalid(field, "plain TCP clients of a %T cannot be served; use a *net.TCPListener, or leave AcceptTCP out", ln)
	}
	return nil
}

// overTCP makes sure that a connection which somebody else has accepted has addresses, and
// no TLS of which nobody here knows.
func overTCP(nc net.Conn) error {
	if _, ok := nc.(*tls.Conn); ok {
		return errors.New("ListenOn was given a listener that does TLS itself: set ListenConfig.TLSConfig instead")
	}
	for _, a := range []net.Addr{nc.LocalAddr(), nc.RemoteAddr()} {
		if addrPortOfTCP(a) == (netip.AddrPort{}) {
			return fmt.Errorf("%T has the address %v, and no *net.TCPAddr", nc, a)
		}
	}
	return nil
}

// start listens on ln, at an address in zone, and closes it if it fails.
func (lc *ListenConfig) start(ctx context.Context, t *Transport, ln net.Listener, zone string) (net.Listener, error) {
	l := newListener(t, lc, ln)
	l.cfg.TLSConfig = bootstrap.ServerTLS(lc.TLSConfig)
	l.addr.ap = inZone(l.addr.ap, zone)
	offers, _, err := t.offers(localIP(l.addr), lc.Providers)
	var unusable error // why plain TCP is all that can be served
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
		t.endpoints.openEarly(&offers[0], localIP(l.addr))
	}
	if unusable != nil {
		t.events.tell(ctx, lc.Logger, slog.LevelWarn, eventNothing, slog.String("listener", l.addr.String()), slog.Any("error", unusable))
	}
	return l, nil
}

// listen registers a listener and starts it.
func (t *Transport) listen(l *Listener) error {
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
