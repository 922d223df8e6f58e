package rdmanet

import (
	"crypto/tls"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/engine"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// ConnInfo describes how the bytes of a conn travel.
type ConnInfo struct {
	ID       uint64    // unique in this process
	Opened   time.Time // when it was dialed, or came to the listener; Accept may have returned it later
	Dialed   bool      // by this side; false if it was accepted
	Provider string    // libfabric's name, "" for plain TCP
	// Protocol and ProtocolVersion are the provider's wire protocol, as in
	// fi_endpoint(3); Library is the version of libfabric.
	Protocol        uint32
	ProtocolVersion uint32
	Library         string
	Fabric, Domain  string
	// SmallPath and LargePath describe, for people, how this side's small and large writes
	// travel.
	SmallPath, LargePath string
	// Reused reports whether a dialed conn shares a control connection that another dial made.
	// It is false for accepted conns.
	Reused bool
	// Fallback is why the Dialer used plain TCP. It is nil if it did not, and also if the
	// other side chose TCP.
	Fallback error
	// ControlLocal and ControlRemote are the addresses of the control connection, which may be
	// that of other conns, too. They are nil for plain TCP and must not be changed.
	ControlLocal, ControlRemote *net.TCPAddr
	// Lost is why the peer was lost while the conn was open, nil if it was not. The errors of the
	// conn's calls do not say it: like TCP's they have a bare ECONNRESET.
	Lost error
	// Refused says why providers that either side prefers to this one are not used. What the
	// peer has refused is in the peer's words.
	Refused []Refusal
	// TLS is what PeerTLS returns, nil without TLS.
	TLS *tls.ConnectionState
	// Bytes of small and large data so far. They are zero for plain TCP.
	SmallSent, SmallReceived uint64
	LargeSent, LargeReceived uint64
}

// Refusal says why a provider is not used.
type Refusal struct {
	Provider string // libfabric's name
	Reason   string // for people
}

// String returns "provider: reason".
func (r Refusal) String() string { return r.Provider + ": " + r.Reason }

// refusals takes apart what a handshake says of providers, which has the form of String.
func refusals(texts []string) (list []Refusal) {
	for _, text := range texts {
		provider, reason, _ := strings.Cut(text, ": ")
		list = append(list, Refusal{provider, reason})
	}
	return list
}

// Info returns a snapshot of how the bytes of c travel. It works after Close, too.
func (c *Conn) Info() ConnInfo {
	info := c.in.info()
	runtime.KeepAlive(c)
	return info
}

// PeerTLS returns the state of the TLS that TLSConfig has put around the control connection. It
// has the peer's certificates, as they were checked when the two processes met. PeerTLS reports
// false if there was no TLS. The conn's own bytes do not go through that TLS:
// it says who the peer is or, for conns that reuse a control connection, who it was. It works
// after Close, too.
func (c *Conn) PeerTLS() (tls.ConnectionState, bool) {
	if c.in.link.tls == nil {
		return tls.ConnectionState{}, false
	}
	return *c.in.link.tls, true
}

func (c *record) info() ConnInfo {
	if c.fabric == nil {
		return c.counted(engine.Counters{})
	}
	return c.counted(c.fabric.Seen())
}

// counted is info with these counters.
func (c *record) counted(n engine.Counters) ConnInfo {
	info := ConnInfo{ID: c.id, Opened: c.opened, Dialed: c.dialed, Reused: c.reused, Fallback: c.fallback}
	if c.fabric == nil {
		info.SmallPath, info.LargePath = "tcp", "tcp"
		return info
	}
	a := c.link.ep.engine.Attr()
	info.Provider, info.Protocol, info.ProtocolVersion = a.Provider, a.Protocol, a.ProtocolVersion
	info.Library, info.Fabric, info.Domain = a.Library, a.Fabric, a.Domain
	info.SmallPath, info.LargePath = smallPath(a), c.fabric.LargePath()
	info.ControlLocal, info.ControlRemote = c.link.local, c.link.remote
	info.Lost = c.fabric.Lost()
	info.Refused = slices.Clone(c.link.refused)
	info.TLS = copyOf(c.link.tls)
	info.SmallSent, info.SmallReceived = n.SmallOut, n.SmallIn
	info.LargeSent, info.LargeReceived = n.LargeOut, n.LargeIn
	return info
}

func smallPath(a fabric.Attr) string {
	if a.InjectSize == 0 {
		return "send"
	}
	return fmt.Sprintf("inject up to %d bytes, else send", a.InjectSize)
}
