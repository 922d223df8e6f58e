// Package bootstrap brings two processes together over TCP before they use a
// fabric. The handshake proves the identity of each, agrees on a provider and
// exchanges endpoint names. The TCP connection then stays open as the control
// connection: it carries heartbeats and never payload. Between processes of one host, a page of
// flags and four FIFOs, the doorbells, go with it. Sections 8 and 9 of framing/SPEC.md specify all this.
package bootstrap

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
)

// Defaults, for which the zero Config stands.
const (
	DefaultTimeout   = 10 * time.Second
	DefaultHeartbeat = 5 * time.Second
	DefaultDeadAfter = 15 * time.Second
)

// Config says how to run a handshake and the session that follows. It is not modified, and may be shared.
type Config struct {
	// TLS wraps the connection, nil for none. The two sides must agree: a
	// listening side with TLS refuses a dialling side without, and vice versa.
	// ServerTLS and ClientTLS make a suitable configuration.
	TLS *tls.Config
	// Timeout bounds the whole handshake, 0 for DefaultTimeout.
	Timeout time.Duration
	// Heartbeat is the longest interval between the heartbeats that this side sends,
	// 0 for DefaultHeartbeat. A peer that has less patience gets them more often.
	Heartbeat time.Duration
	// DeadAfter is how long the peer may be silent before it counts as dead, 0
	// for DefaultDeadAfter. The peer is told this time.
	DeadAfter time.Duration
	// Schedule wakes this session and others. If it is nil, the session gets one of its own.
	Schedule *Schedule
	// KeepAlive configures the TCP connection if its Enable is set. Otherwise the
	// connection gets what suits DeadAfter.
	KeepAlive net.KeepAliveConfig
}

func (c Config) withDefaults() Config {
	if c.Timeout <= 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Heartbeat <= 0 {
		c.Heartbeat = DefaultHeartbeat
	}
	if c.DeadAfter <= 0 {
		c.DeadAfter = DefaultDeadAfter
	}
	if c.Schedule == nil {
		c.Schedule = new(Schedule)
	}
	return c
}

// Peer is what a side knows of the other once both have sent their Hello.
type Peer struct {
	Hello *framing.Hello       // must not be changed
	TLS   *tls.ConnectionState // nil without TLS
}

// Binder is the layer above, while a connection is being negotiated. Its
// methods may be called by several handshakes at once.
//
// If a method returns an error that wraps ErrMemory or ErrClosing, the peer is told so.
type Binder interface {
	// Hello is what this side says of itself, but for its offers: identities and Joins. This
	// package fills in the fields of the page and the silence. It must cost next to nothing:
	// the listening side calls it for strangers.
	Hello() framing.Hello
	// Offer fills in what this side offers on a connection whose local address is local, in
	// order of preference, and what it does not. The listening side calls it once Authorize
	// has let the peer in, since it may take long. It must return soon after ctx has ended.
	Offer(ctx context.Context, local netip.Addr, h *framing.Hello) error
	// Authorize decides on the listening side, after TLS, whether to let the peer in. An
	// error rejects the peer, which is sent its text. It must be an ErrUnauthorized or
	// ErrTooManyPeers, since a user's own error may wrap any of ours. Authorize must return
	// soon after ctx has ended.
	Authorize(ctx context.Context, peer *Peer) error
	// Met says whom this side has met. If its Hello has Joins, Met returns what to ask
	// for, or nil to decline; otherwise it returns nil. It must return soon after ctx has ended.
	// Dialling side only.
	Met(ctx context.Context, peer *Peer) *framing.Join
	// Joined takes in the answer to what Met has returned. Dialling side only.
	Joined(answer *framing.Join) error
	// Join is asked for a further listener of a pair. It returns the answer, or nil to go on with
	// a new pair. An error rejects the peer. It must return soon after ctx has ended. Listening
	// side only.
	Join(ctx context.Context, peer *Peer, ask *framing.Join) (*framing.Join, error)
	// Expect says which offer the listening side will probably select, so that whatever it
	// takes to use that can be opened meanwhile. It returns at once. Dialling side only.
	Expect(offer framing.Offer, local netip.Addr)
	// Prepare reserves a peer on an endpoint of the offered provider, one of
	// those that Hello returned. page is nil unless the offer is a SameHost one;
	// then both sides have it mapped. After an error the next provider is tried.
	Prepare(ctx context.Context, offer framing.Offer, peer *Peer, local netip.Addr, page *Page) (Binding, error)
}

// Binding is one prepared peer. Either Attached or Abort is called to end its negotiation,
// exactly once. Methods are called one at a time.
type Binding interface {
	// Refused says why the providers that either side prefers to this one are not
	// used, each as "provider: reason". It is called once, before Connect.
	Refused(reasons []string)
	// Local returns how the peer reaches this side.
	Local() framing.Attach
	// Connect inserts the peer's address. Once it has returned on the listening
	// side, Pings must be answered and other frames may arrive: the peer's
	// Confirm takes another path than its first frames, which may overtake it.
	Connect(ctx context.Context, remote framing.Attach) error
	// Check is the path check: it moves small and large data both ways on the fabric, and
	// compares it. Dialling side only.
	Check(ctx context.Context) error
	// Admit lets in the peer, which has confirmed, if what the peer's Check sent has arrived
	// here. An error ends the handshake. Listening side only.
	Admit() error
	// Attached says that the provider is confirmed: names of shared memory regions can
	// be unlinked, and frames may flow. s is not started yet: the caller of Dial or Accept
	// has to call Start.
	Attached(s *Session)
	// Abort undoes Prepare and Connect, and ends the use of the page. err says
	// why; it wraps ErrSilent if Check got no answer although the other side
	// answered over TCP.
	Abort(err error)
}
