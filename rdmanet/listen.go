package rdmanet

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/rendezvous"
)

const (
	// DefaultBacklog is how many conns may wait for Accept.
	DefaultBacklog = 128
	// DefaultMaxPeers is how many peer processes a listener has at most, and
	// DefaultMaxPeersPerHost how many of them from one host.
	DefaultMaxPeers        = 8192
	DefaultMaxPeersPerHost = 512
	// DefaultHandshakeTimeout bounds each rendezvous.
	DefaultHandshakeTimeout = 10 * time.Second
)

// PeerInfo is what a listener knows of a peer that asks to be let in.
type PeerInfo struct {
	LocalAddr, RemoteAddr net.Addr
	// TLS has the peer's certificates, nil without TLSConfig.
	TLS *tls.ConnectionState
}

// ListenConfig has the options of Listen. The zero value is ready to use; values that
// make no sense are an ErrConfig. It must not be changed while Listen runs.
type ListenConfig struct {
	// KeepAliveConfig is for the TCP connections. The rendezvous has its own,
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
	// not applied to plain clients.
	AcceptTCP bool
	// TLSConfig protects the rendezvous: dialers without TLS are refused. The
	// bytes on the fabric are not encrypted. Listen copies it, as net/http does: keys for
	// session tickets are changed through GetConfigForClient. NextProtos, there as well, is
	// replaced by "fabricnet/1": clients that speak other protocols only are refused.
	TLSConfig *tls.Config
	// Authorize is asked for each peer process, after TLS. The text of its error
	// is sent to the peer. It is called by up to 64 goroutines at once. The context ends
	// after HandshakeTimeout and with Listener.Close and Transport.Close, at which the
	// handshake is over, whatever Authorize returns and even if it does not; Close does
	// not wait for it. Calls that do not return keep others waiting once there are 64.
	Authorize func(ctx context.Context, peer PeerInfo) error
	// HandshakeTimeout bounds each rendezvous, at least a millisecond, 0 for
	// DefaultHandshakeTimeout. A rendezvous over shared memory takes some 20 milliseconds.
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
	nlc := net.ListenConfig{KeepAliveConfig: lc.KeepAliveConfig}
	ln, err := nlc.Listen(ctx, tcp, address)
	if err != nil {
		return nil, opError("listen", nil, nil, err)
	}
	l := newListener(t, lc, ln)
	l.cfg.TLSConfig = rendezvous.ServerTLS(lc.TLSConfig)
	_, _, err = t.offers(localIP(ln.Addr()), lc.Providers)
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
