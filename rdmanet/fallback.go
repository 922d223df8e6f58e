package rdmanet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"
)

// Fallback says what a Dialer does about peers that no fabric reaches.
type Fallback int

const (
	// FallbackNone, the default, makes Dial fail.
	FallbackNone Fallback = iota
	// FallbackTCP makes a new, plain TCP connection if the peer does not use rdmanet or
	// shares no provider, or if the fabric does not come up. Transport.Stats counts this and
	// ConnInfo.Fallback says why. A peer of another protocol that says nothing at first is
	// given up on after 3 seconds, not counting the time to load libfabric, or after half of
	// the dial's remaining time if that is less. Its address is remembered: see
	// Transport.FailureMemory. An rdmanet listener takes plain TCP only with AcceptTCP.
	// Without it, the listener closes the connection, which only the first Read reports.
	FallbackTCP
)

// String returns the name of the constant.
func (f Fallback) String() string {
	switch f {
	case FallbackNone:
		return "FallbackNone"
	case FallbackTCP:
		return "FallbackTCP"
	}
	return fmt.Sprintf("Fallback(%d)", int(f))
}

// maxPatience is how long a handshake may take if there is an alternative.
const maxPatience = 3 * time.Second

// fallbackPatience returns how long such a handshake may take: it leaves half of the dial's time
// to the alternative.
func fallbackPatience(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(min(maxPatience, time.Until(deadline)/2), time.Millisecond)
	}
	return maxPatience
}

// replaceable reports whether err is a failure of the fabric, as opposed to one of the network,
// of the user's settings or of permissions.
func replaceable(err error) bool {
	for _, e := range []error{ErrNotRdmanet, ErrNoProvider, ErrProviderUnavailable, ErrUnsupported, ErrVersion, ErrHandshakeTimeout} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// fallback makes a plain TCP connection after err, if the Dialer wants that.
func (p *plan) fallback(ctx context.Context, err error) (net.Conn, error) {
	if p.Fallback != FallbackTCP || ctx.Err() != nil || !replaceable(err) {
		return nil, err
	}
	if p.TLSConfig != nil && !p.AllowInsecureFallback {
		return nil, withoutFallback(err)
	}
	nc := p.unused.take()
	if nc == nil {
		var tcpErr error
		if nc, tcpErr = p.dialTCP(ctx); tcpErr != nil {
			p.forgetForeign() // whatever it was that ended the handshake has gone
			return nil, tcpErr
		}
	}
	if oe, ok := err.(*net.OpError); ok { //nolint:errorlint // only the outermost
		err = oe.Err // the addresses are the conn's
	}
	p.t.counters.add(p.t.counters.fellBack, failureReason(err))
	p.t.events.tell(ctx, p.Logger, slog.LevelWarn, eventFallback,
		slog.String("peer", nc.RemoteAddr().String()), slog.Any("reason", err))
	p.t.counters.plain.Add(1)
	return describePlain(nc, err), nil
}

// unusedConn passes a TCP connection on which nothing was sent from a handshake, which did not begin,
// to the fallback. The dial may have ended by then, if others wait for the handshake, too.
type unusedConn struct{ nc atomic.Pointer[net.Conn] }

// taken says that nobody will take a connection any more.
var taken = new(net.Conn)

func (u *unusedConn) put(nc net.Conn) {
	if !u.nc.CompareAndSwap(nil, &nc) {
		nc.Close()
	}
}

// take returns the connection, nil if there is none. From then on put closes what it gets.
func (u *unusedConn) take() net.Conn {
	if nc := u.nc.Swap(taken); nc != nil {
		return *nc
	}
	return nil
}

// close closes the connection, unless that was taken.
func (u *unusedConn) close() {
	if nc := u.take(); nc != nil {
		nc.Close()
	}
}

// withoutFallback adds to err why there was no fallback. It keeps the addresses.
func withoutFallback(err error) error {
	const why = "no fallback to TCP: it would be without the TLS that TLSConfig asks for (Dialer.AllowInsecureFallback)"
	if oe, ok := err.(*net.OpError); ok { //nolint:errorlint // only the outermost
		out := *oe
		out.Err = fmt.Errorf("%w; %s", oe.Err, why)
		return &out
	}
	return fmt.Errorf("%w; %s", err, why)
}
