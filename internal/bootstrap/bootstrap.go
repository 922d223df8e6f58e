// Package bootstrap brings two processes together over TCP before they use a
// fabric. The handshake proves the identity of each, agrees on a provider and
// exchanges endpoint names. The TCP connection then stays open as the control
// connection: it carries heartbeats and doorbells, and never payload. Sections 8 and 9 of framing/SPEC.md specify it.
package bootstrap

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
)

// What the zero Config stands for.
const (
	DefaultTimeout   = 10 * time.Second
	DefaultHeartbeat = 5 * time.Second
	DefaultDeadAfter = 15 * time.Second
)

// Config says how to run a handshake. It is not changed, and may be shared.
type Config struct {
	// TLS wraps the connection, nil for none. The two sides must agree: a
	// listening side with TLS refuses a dialling side without, and the reverse.
	// ServerTLS and ClientTLS make what it should be.
	TLS *tls.Config
	// Timeout bounds the whole handshake, 0 for DefaultTimeout.
	Timeout time.Duration
	// Heartbeat is the longest interval of the signs of life that this side sends,
	// 0 for DefaultHeartbeat. A peer that has less patience gets them more often.
	Heartbeat time.Duration
	// DeadAfter is how long the peer may be silent before it counts as dead, 0
	// for DefaultDeadAfter. The peer is told.
	DeadAfter time.Duration
	// Schedule wakes this session and others, nil for one of its own.
	Schedule *Schedule
	// KeepAlive is for the TCP connection if it says Enable, instead of what
	// suits DeadAfter.
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

// Peer is what a side knows of the other when both have said hello.
type Peer struct {
	Hello    *framing.Hello       // must not be changed
	Version  uint8                // of the protocol, in use: the highest that both sides speak
	Features uint64               // in use: those that both sides have
	TLS      *tls.ConnectionState // nil without TLS
}

// Binder is the layer above, while a connection is being negotiated. Its
// methods may be called by several handshakes at once.
//
// An error of any method that wraps ErrMemory or ErrClosing tells the peer so.
type Binder interface {
	// Hello is what this side says of itself, for a connection whose local
	// address is local: offers in order of preference, versions and
	// identities. Zero versions stand for all that package framing speaks, with its
	// features; the page's fields are filled in here.
	Hello(local netip.Addr) (framing.Hello, error)
	// Authorize is asked by the listening side, after TLS. An error rejects the
	// peer, and its text is sent to it: an ErrUnauthorized or ErrTooManyPeers, for the
	// user's own may wrap any of ours. It must return soon after ctx has ended.
	Authorize(ctx context.Context, peer *Peer) error
	// Expect says which offer the listening side is about to select, probably: what it takes
	// to use that may be opened meanwhile. It returns at once. Dialling side only.
	Expect(offer framing.Offer, local netip.Addr)
	// Prepare reserves a peer on an endpoint of the offered provider, one of
	// those that Hello returned. page is nil unless the offer is a SameHost one,
	// and then it is mapped by both sides. An error moves on to the next provider.
	Prepare(ctx context.Context, offer framing.Offer, peer *Peer, local netip.Addr, page *Page) (Binding, error)
}

// Binding is one prepared peer. Either Attached or Abort ends its negotiation,
// exactly once. Methods are called one at a time.
type Binding interface {
	// Refused says why those providers are not used that either side prefers to
	// this one, each "provider: reason". It is called once, before Connect.
	Refused(reasons []string)
	// Local is how the peer reaches this side.
	Local() framing.Attach
	// Connect inserts the peer's address. Once it has returned on the listening
	// side, Pings must be answered and other frames may arrive: the peer's
	// Confirm travels on another path than its first frames and may be
	// overtaken by them.
	Connect(ctx context.Context, remote framing.Attach) error
	// Check moves small and large data both ways on the fabric, and compares it.
	// Dialling side only.
	Check(ctx context.Context) error
	// Admit lets the peer in, which has confirmed: its Check has brought here what it
	// sent. Else the handshake ends with the error. Listening side only.
	Admit() error
	// Attached says that the peer confirmed. Names of shared memory regions can
	// be unlinked, frames may flow. s is not started yet, and Start belongs to
	// whoever called Dial or Accept.
	Attached(s *Session)
	// Abort undoes Prepare and Connect, and ends the use of the page. err says
	// why; it wraps ErrSilent if Check brought no answer although the other side
	// answered here.
	Abort(err error)
}
