package rdmanet

import (
	"slices"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/engine"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/shmdir"
)

// NewTransport returns a Transport over a fabric of the test's choice, most of whose
// providers it uses without being told.
func NewTransport(f fabric.Fabric) *Transport {
	return &Transport{fabric: f, auto: slices.Concat(automatic, []string{"psm3", "opx", "efa-direct", "tcp", "net", "tcp;ofi_rxm"})}
}

// NewCarefulTransport is NewTransport with the choice that users get.
func NewCarefulTransport(f fabric.Fabric) *Transport { return &Transport{fabric: f} }

// Speak makes t pass for another build of this package.
func (t *Transport) Speak(lowest, highest uint8, features uint64) {
	t.hello = func(h *framing.Hello) { h.MinVersion, h.MaxVersion, h.Features = lowest, highest, features }
}

// MaxAsking is how many calls of Authorize a listener makes at a time.
const MaxAsking = maxAsking

// SpareDelay is how long after a peer a spare is opened.
const SpareDelay = spareDelay

// DropSpares closes the endpoints that are open for peers to come.
func (t *Transport) DropSpares() { transportOr(t).endpoints.dropSpares() }

// CleanShm does what the first dial or listener of a process does.
func CleanShm() { shmdir.Clean(shmdir.Dir) }

// Flights is how many handshakes dials are waiting for.
func (t *Transport) Flights() int {
	t = transportOr(t)
	t.links.mu.Lock()
	defer t.links.mu.Unlock()
	return len(t.links.flights)
}

// Waiters is how many dials wait for a handshake.
func (t *Transport) Waiters() (n int) {
	t = transportOr(t)
	t.links.mu.Lock()
	defer t.links.mu.Unlock()
	for _, f := range t.links.flights {
		n += f.waiters
	}
	return n
}

// HostID is what peers of one host have in common.
func HostID() [16]byte { return hostID() }

// OfferOf is what a Transport's hello says of a provider.
func OfferOf(p *fabric.ProviderInfo) framing.Offer { return offerOf(p) }

// EndpointNames is the addresses of the open endpoints that peers share.
func (t *Transport) EndpointNames() (names [][]byte) {
	es := &transportOr(t).endpoints
	es.mu.Lock()
	defer es.mu.Unlock()
	for _, list := range es.shared {
		for _, ep := range list {
			names = append(names, ep.fab.Name())
		}
	}
	return names
}

// LandingMemory is how much memory its Transport has for peers to write to.
func LandingMemory(c *Conn) (n int64) {
	for _, p := range c.link.t.Stats().Providers {
		n += p.LandingMemory
	}
	return n
}

// Sweep looks for idle peers, as is done each time that Cleaning has passed.
func (t *Transport) Sweep()                  { t.links.sweep(t.idleTimeout()) }
func (t *Transport) Cleaning() time.Duration { return t.links.cleaning() }

// ProviderStatsOf is what Stats makes of an endpoint's counters.
func ProviderStatsOf(s engine.Stats) ProviderStats { return providerStats(s) }

// Plus is the sum of two.
func (s ProviderStats) Plus(o ProviderStats) ProviderStats { return s.add(o) }

// FreeOf is what the endpoint of a conn has for live peers.
func FreeOf(c *Conn) engine.Free { return c.link.ep.engine.Stats().Free }

// Free is what FreeOf returns.
type Free = engine.Free

// Avoid has the endpoint of a conn avoided, as a peer does that falls silent.
func Avoid(c *Conn) { c.link.ep.engine.Avoid() }

// LetGo lets an idle peer of l go, however short it has been idle.
func LetGo(l *Listener) bool {
	return l.t.links.endIdle(func(o *link) bool { return o.listener == l }, (*link).endIdle)
}

// AgeNames makes what is remembered of names older.
func (t *Transport) AgeNames(by time.Duration) {
	t.links.mu.Lock()
	defer t.links.mu.Unlock()
	for key, n := range t.links.names {
		n.at = n.at.Add(-by)
		t.links.names[key] = n
	}
}

// Bounds of what waits for loggers.
const (
	MaxDebugEvents = maxDebugEvents
	EventsLinger   = eventsLinger
)
