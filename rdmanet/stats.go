package rdmanet

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/seed202c38ff/fabricnet/internal/bootstrap"
	"github.com/seed202c38ff/fabricnet/internal/engine"
)

// TransportStats is a snapshot of what a Transport has, and of what it has done.
type TransportStats struct {
	Conns    int // open over a fabric, including those that wait for Accept
	TCPConns int // open over plain TCP
	Backlog  int // conns that wait for Accept
	Peers    int // peer processes, dialed or accepted
	// Opened is how many conns were dialed over a fabric, or taken by a listener's backlog.
	// Refused is how many conns listeners have refused, because the backlog was full, the
	// memory budget was used up or the listener was closed.
	Opened, Refused uint64
	// PeersRefused is how often a peer, dialed or accepted, got no place: with a provider,
	// since there may be no further endpoint (see ProviderStats.Endpoints and MaxShmPeers), or
	// with a listener (see ListenConfig.MaxPeers).
	PeersRefused uint64
	// Providers has the counters of each provider that was used.
	Providers map[string]ProviderStats
	// Handshakes is how many handshakes listeners run now, including those with peers that
	// say nothing.
	Handshakes int
	// HandshakeFailures and Fallbacks count by reason: FailureTimeout and the like.
	HandshakeFailures map[string]uint64
	Fallbacks         map[string]uint64
	// PathFailures counts path checks that failed in dials, by provider: wrong contents
	// arrived, or nothing arrived although the peer answered over TCP.
	PathFailures map[string]uint64
	Memory       MemoryStats
	// EventsDropped is how many events loggers have not been told of, since they were too
	// slow: up to 256 events wait for a logger, at most 128 of them at debug level.
	EventsDropped uint64
	// ControlSent and ControlReceived are the bytes on control connections since their
	// handshakes.
	ControlSent, ControlReceived uint64
}

// MemoryStats says how much of the memory budget is used, in bytes.
type MemoryStats struct {
	Limit   int64 // Transport.MemoryLimit
	Used    int64 // in use or promised
	High    int64 // the most that Used has been
	Mapped  int64 // the part of Used that is mapped
	Foreign int64 // mapped of peers' landing rings, which the peers pay for: no more than Limit
}

// ProviderStats has the counters of all endpoints of one provider, including closed ones.
type ProviderStats struct {
	// Endpoints is how many endpoints are open now. Over shared memory each peer has one, and
	// one more may be open for the next peer. Over other providers, the peers that are reached
	// from one local address share one, until it has so many peers that busy ones would get
	// too few receives, or until peers that died hold too much of it. Then another one is
	// opened beside it; there are up to 16. Stale is how many of them take no more peers,
	// because of what dead peers hold or because they have heard nobody for long. They are
	// closed when their last peer has gone.
	Endpoints, Stale int
	Peers            int
	Conns            int // including those that are closing
	// LandingMemory is how many bytes are mapped for what peers write by RDMA or by copies. It
	// is given back when the conns of a peer have been idle for up to three seconds.
	LandingMemory int64

	PeersLost                  uint64 // ended, for any reason
	FramesSent, FramesReceived uint64
	FramesDropped              uint64 // without the right proof, or malformed
	FramesStray                uint64 // for conns or landing ring leases that are gone
	WritesStray                uint64 // RDMA writes that belong to no granted landing ring
	FramesHeld                 uint64 // arrived before what precedes them
	Violations                 uint64 // peers cut off because they broke the protocol
	// Abandoned is how many endpoints were given up because a call hung in them after their
	// peer had died, or while it was stopped. What the library has mapped for them, some
	// mebibytes each, stays until the process ends.
	Abandoned uint64
	// BytesSent and BytesReceived are all data of conns. RDMABytesSent and RDMABytesReceived
	// are the part that travels by RDMA write or, to rings that both processes map, by a copy
	// that stands in for it: see Copies.Mapped.
	BytesSent, BytesReceived         uint64
	RDMABytesSent, RDMABytesReceived uint64
	RDMAWrites                       uint64 // posted, including such copies
	RDMAWritesReceived               uint64
	LeasesRevoked                    uint64 // landing rings taken back
	Posted, Reaped, CQErrors         uint64 // operations and completions
	// Retries is how often the fabric took operations, including receives, after it had
	// refused them for the moment, for example because a queue was full (EAGAIN).
	Retries uint64
	// Polls is how often completion queues were polled, and PollsEmpty how often that found
	// nothing. They are brought up to date when something is found, and before a goroutine
	// sleeps.
	Polls, PollsEmpty           uint64
	Parks                       uint64 // waits that ended up blocking
	DoorbellsSent, DoorbellsGot uint64
	Polling                     Polling
	// Stalls counts the waits of senders.
	Stalls Stalls
	Copies Copies
}

// Polling is what endpoints have found out about polling. Each endpoint learns from the waits
// of its conns: see Transport.PollTime. It compares what waits cost on average with what they
// cost in trials, in which it polls if it usually does not, and does not if it usually does.
// The counters are brought up to date every few milliseconds of waiting.
type Polling struct {
	Endpoints    int    // that have peers, and on which calls now poll before they sleep
	Hits, Misses uint64 // waits that polling has ended, and other waits
	Trials       uint64
	Changes      uint64 // from polling to sleeping, or back
}

// Copies counts, in bytes, what was copied and what was not, apart from the copy into the
// memory that Read was given.
type Copies struct {
	Staged      uint64 // copied by Write into registered memory
	Unstaged    uint64 // sent by SendBuffer from where it was
	Mapped      uint64 // copied by Write or SendBuffer to where the peer reads it: see Transport.DisableMappedRings
	Reassembled uint64 // copied aside, since no Read waited when it arrived
	Lent        uint64 // returned by RecvBuffer, or passed on by WriteTo, where it had landed
}

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

// Stalls counts how often senders waited, by what they waited for.
type Stalls struct {
	Window    uint64 // the peer's receive window
	Ring      uint64 // the peer's landing ring
	PeerSlots uint64 // the peer's receive slots
	SendSlots uint64 // send slots of this side
	Stage     uint64 // staging memory of this side
	Queue     uint64 // the fabric's transmit queue
	Memory    uint64 // the memory budget
}

func providerStats(s engine.Stats) ProviderStats {
	return ProviderStats{
		Endpoints: 1, Stale: s.Stale, Peers: s.Peers, Conns: s.Streams, LandingMemory: s.Landing,
		PeersLost: s.PeersLost, FramesSent: s.FramesSent, FramesReceived: s.FramesReceived,
		Abandoned: s.Abandoned, FramesDropped: s.FramesDropped, FramesStray: s.FramesStray, WritesStray: s.WritesStray, FramesHeld: s.FramesHeld,
		Violations: s.Violations, RDMAWrites: s.RDMAWrites, RDMABytesReceived: s.RDMAReceived,
		LeasesRevoked: s.LeasesRevoked, Posted: s.Posted, Reaped: s.Reaped, CQErrors: s.CQErrors,
		BytesSent: s.SmallSent + s.RDMASent, BytesReceived: s.SmallReceived + s.RDMAReceived,
		RDMABytesSent: s.RDMASent, RDMAWritesReceived: s.RDMAWritesReceived,
		Retries: s.Retries, Polls: s.Polls, PollsEmpty: s.PollsEmpty,
		Parks: s.Parks, DoorbellsSent: s.DoorbellsRung, DoorbellsGot: s.DoorbellsHeard,
		Polling: polling(s), Stalls: Stalls(s.Stalls), Copies: Copies(s.Copies),
	}
}

func polling(s engine.Stats) Polling {
	p := Polling{Hits: s.Learnt.Hits, Misses: s.Learnt.Misses, Trials: s.Learnt.Trials, Changes: s.Learnt.Changes}
	if s.Learnt.PollTime > 0 && s.Peers > 0 {
		p.Endpoints = 1
	}
	return p
}

func (s ProviderStats) add(o ProviderStats) ProviderStats {
	s.Endpoints += o.Endpoints
	s.Stale += o.Stale
	s.Peers += o.Peers
	s.Conns += o.Conns
	s.LandingMemory += o.LandingMemory
	s.PeersLost += o.PeersLost
	s.FramesSent += o.FramesSent
	s.FramesReceived += o.FramesReceived
	s.FramesDropped += o.FramesDropped
	s.FramesStray += o.FramesStray
	s.WritesStray += o.WritesStray
	s.FramesHeld += o.FramesHeld
	s.Violations += o.Violations
	s.Abandoned += o.Abandoned
	s.RDMAWrites += o.RDMAWrites
	s.BytesSent += o.BytesSent
	s.BytesReceived += o.BytesReceived
	s.RDMABytesSent += o.RDMABytesSent
	s.RDMABytesReceived += o.RDMABytesReceived
	s.RDMAWritesReceived += o.RDMAWritesReceived
	s.LeasesRevoked += o.LeasesRevoked
	s.Posted += o.Posted
	s.Reaped += o.Reaped
	s.CQErrors += o.CQErrors
	s.Retries += o.Retries
	s.Polls += o.Polls
	s.PollsEmpty += o.PollsEmpty
	s.Parks += o.Parks
	s.DoorbellsSent += o.DoorbellsSent
	s.DoorbellsGot += o.DoorbellsGot
	s.Polling.Endpoints += o.Polling.Endpoints
	s.Polling.Hits += o.Polling.Hits
	s.Polling.Misses += o.Polling.Misses
	s.Polling.Trials += o.Polling.Trials
	s.Polling.Changes += o.Polling.Changes
	s.Stalls.Window += o.Stalls.Window
	s.Stalls.Ring += o.Stalls.Ring
	s.Stalls.PeerSlots += o.Stalls.PeerSlots
	s.Stalls.SendSlots += o.Stalls.SendSlots
	s.Stalls.Stage += o.Stalls.Stage
	s.Stalls.Queue += o.Stalls.Queue
	s.Stalls.Memory += o.Stalls.Memory
	s.Copies.Staged += o.Copies.Staged
	s.Copies.Unstaged += o.Copies.Unstaged
	s.Copies.Mapped += o.Copies.Mapped
	s.Copies.Reassembled += o.Copies.Reassembled
	s.Copies.Lent += o.Copies.Lent
	return s
}

// counters is what a Transport counts itself.
type counters struct {
	opened, refused, peersRefused atomic.Uint64

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
		Opened: c.opened.Load(), Refused: c.refused.Load(), PeersRefused: c.peersRefused.Load(),
		HandshakeFailures: maps.Clone(c.failed), Fallbacks: maps.Clone(c.fellBack), PathFailures: maps.Clone(c.pathFailures),
	}
}

// Stats returns a snapshot of the Transport's counters.
func (t *Transport) Stats() TransportStats {
	t = transportOr(t)
	out := t.counters.snapshot()
	t.links.count(&out)
	t.mu.Lock()
	out.Conns, out.TCPConns = int(t.conns.Load()), t.plain
	for l := range t.listeners {
		out.Handshakes += l.admission.size()
		out.Backlog += len(l.backlog)
	}
	t.mu.Unlock()
	out.EventsDropped = t.events.dropped.Load()
	out.Memory, out.Providers = MemoryStats(t.budget.Stats()), t.endpoints.stats()
	return out
}
