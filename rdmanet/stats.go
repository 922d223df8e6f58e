package rdmanet

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/seed202c38ff/fabricnet/internal/bootstrap"
	"github.com/seed202c38ff/fabricnet/metrics"
)

type (
	// TransportStats is what Transport.Stats returns. Package metrics declares it, and the types
	// below, for exporters to read.
	TransportStats = metrics.TransportStats
	// ProviderStats has the counters of a provider's endpoints.
	ProviderStats = metrics.ProviderStats
	// MemoryStats says how much of the memory budget is used.
	MemoryStats = metrics.MemoryStats
	// Polling is what endpoints have found out about polling.
	Polling = metrics.Polling
	// Stalls counts the waits of senders.
	Stalls = metrics.Stalls
	// Copies counts what was copied and what was not.
	Copies = metrics.Copies
)

// What ConnState.WaitsFor says, and values of the label "reason" of the metric of Stalls.
const (
	StallWindow    = "window"     // the peer's receive window
	StallRing      = "ring"       // the peer's landing ring
	StallPeerSlots = "peer slots" // the peer's receive slots
	StallSendSlots = "send slots" // send slots of this side
	StallStaging   = "staging"    // staging memory of this side
	StallQueue     = "queue"      // the fabric's transmit queue
	StallMemory    = "memory"     // the memory budget: only in the metric
	StallTurn      = "turn"       // conns that came before this one: only in WaitsFor
	StallDelivery  = "delivery"   // Close, for the peer to have everything: only in WaitsFor
)

// counters is what a Transport counts itself.
type counters struct {
	opened, refused, peersRefused, plain, dropped atomic.Uint64

	mu           sync.Mutex // a leaf; guards what follows
	failed       map[string]uint64
	pathFailures map[string]uint64 // by provider
	fellBack     map[string]uint64
	onWire       bootstrap.Stats // of ended sessions
}

func (c *counters) init() {
	c.failed, c.pathFailures, c.fellBack = make(map[string]uint64), make(map[string]uint64), make(map[string]uint64)
}

// add adds one to one of the counters.
func (c *counters) add(m map[string]uint64, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m[reason]++
}

// keepWire adds what an ended session has counted.
func (c *counters) keepWire(s bootstrap.Stats) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onWire.Sent += s.Sent
	c.onWire.Received += s.Received
}

// wire returns what ended sessions have counted.
func (c *counters) wire() bootstrap.Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.onWire
}

// snapshot begins a TransportStats.
func (c *counters) snapshot() TransportStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return TransportStats{
		Opened: c.opened.Load(), TCPConns: c.plain.Load(), Dropped: c.dropped.Load(), Refused: c.refused.Load(), PeersRefused: c.peersRefused.Load(),
		HandshakeFailures: maps.Clone(c.failed), Fallbacks: maps.Clone(c.fellBack), PathFailures: maps.Clone(c.pathFailures),
	}
}

// Stats returns a snapshot of the Transport's counters.
func (t *Transport) Stats() TransportStats {
	t = transportOr(t)
	out := t.counters.snapshot()
	t.links.count(&out)
	t.mu.Lock()
	out.Conns = len(t.live)
	for l := range t.listeners {
		out.Handshakes += l.admission.size()
		out.Backlog += len(l.backlog)
	}
	t.mu.Unlock()
	out.EventsDropped = t.events.dropped.Load()
	out.Memory, out.Providers = MemoryStats(t.budget.Stats()), t.endpoints.stats()
	return out
}
