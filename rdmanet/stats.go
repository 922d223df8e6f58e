package rdmanet

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/seed202c38ff/fabricnet/internal/bootstrap"
	"github.com/seed202c38ff/fabricnet/internal/engine"
	"github.com/seed202c38ff/fabricnet/pool"
)

// TransportStats is a snapshot of what a Transport has done.
type TransportStats struct {
	Conns    int // open over a fabric, those that wait for Accept included
	TCPConns int // open over plain TCP
	Backlog  int // conns that wait for Accept
	Peers    int // peer processes, dialed or accepted
	// Opened is how many conns were dialed, over a fabric, or taken by a listener's
	// backlog. Refused is how many listeners have refused: the backlog was full, or
	// the memory budget.
	Opened, Refused uint64
	// PeersRefused is how often a peer got no place with a provider, on either side, since
	// there may be no further endpoint (see ProviderStats.Endpoints and MaxShmPeers), or with
	// a listener: see ListenConfig.MaxPeers.
	PeersRefused uint64
	// Providers has the counters of each provider that was used.
	Providers map[string]ProviderStats
	// Handshakes is how many listeners run now, with peers that say nothing
	// included.
	Handshakes int
	// HandshakeFailures and Fallbacks count by reason, a short word.
	HandshakeFailures map[string]uint64
	Fallbacks         map[string]uint64
	// PathFailures counts path checks that failed at dials, by provider: wrong contents
	// arrived, or nothing although the peer answered over TCP.
	PathFailures map[string]uint64
	Memory       MemoryStats
	// EventsDropped is how many events loggers have not been told of, since they were too
	// slow: up to 256 events wait for a logger, 128 of them at debug level.
	EventsDropped uint64
	// ControlSent and ControlReceived are bytes on the TCP connections
	// since their handshakes.
	ControlSent, ControlReceived uint64
}

// MemoryStats says how much of the memory budget is used, in bytes: Limit is MemoryLimit, Used
// of that is in use or promised, High the most that was, and Mapped how much is there. Foreign
// is what is mapped of peers' landing rings besides, no more than Limit.
type MemoryStats = pool.BudgetStats

// ProviderStats are the counters of all endpoints of one provider, closed ones
// included.
type ProviderStats struct {
	// Endpoints is how many are open now. Over shared memory each peer has one, and one more
	// may be open for the next. Over other providers peers that are reached from one local address
	// share one, until it has so many that those which are busy would get too few receives,
	// or peers that died hold too much of it; there are up to 16 beside each other then.
	// Stale is how many of them take no more peers for the latter reason, or since they have
	// heard nobody for long, and are closed when the last has gone.
	Endpoints, Stale int
	Peers            int
	Conns            int // closing ones included
	// LandingMemory is the bytes mapped for what peers write by RDMA or by copies. It is given
	// back when the conns of a peer have been idle for up to three seconds.
	LandingMemory int64

	PeersLost                  uint64 // ended, for any reason
	FramesSent, FramesReceived uint64
	FramesDropped              uint64 // without the right proof, or malformed
	FramesStray                uint64 // for conns that are gone
	WritesStray                uint64 // RDMA writes into no landing ring that was granted
	FramesHeld                 uint64 // that arrived before what precedes them
	Violations                 uint64 // peers cut off because they broke the protocol
	// Abandoned endpoints are those in which a call hung after their peer had died
	// or while it was stopped: what the library has mapped for them, some
	// mebibytes each, stays until the process ends.
	Abandoned uint64
	// BytesSent and BytesReceived are all data of conns, RDMABytesSent and
	// RDMABytesReceived what of that travels by RDMA write or, to rings that both processes
	// map, by a copy that stands in for it: see Copies.Mapped.
	BytesSent, BytesReceived         uint64
	RDMABytesSent, RDMABytesReceived uint64
	RDMAWrites                       uint64 // posted, and such copies
	RDMAWritesReceived               uint64
	LeasesRevoked                    uint64 // landing rings taken back
	Posted, Reaped, CQErrors         uint64 // operations and completions
	// Retries are operations, receives included, that the fabric took after it had
	// refused them for the moment, as with a full queue (EAGAIN).
	Retries uint64
	// Polls of completion queues, and those that found nothing. They are brought up to
	// date when something is found, and before a goroutine sleeps.
	Polls, PollsEmpty           uint64
	Parks                       uint64 // waits that ended up blocking
	DoorbellsSent, DoorbellsGot uint64
	Polling                     Polling
	// Stalls counts what senders had to wait for.
	Stalls Stalls
	Copies Copies
}

// Polling is what endpoints have found out about polling, which each learns from the waits of
// its conns: see Transport.PollTime. Averages of what waits cost are compared with those of
// trials, in which the endpoint polls if it does not usually, or does not if it does. They are
// brought up to date every few milliseconds of waiting.
type Polling struct {
	Endpoints    int    // that have peers, and on which calls poll before they sleep, now
	Hits, Misses uint64 // waits that polling has ended, and others
	Trials       uint64
	Changes      uint64 // from polling to sleeping, or back
}

// Copies counts, in bytes, what was copied and what was not, apart from the copy
// into the memory that Read was given.
type Copies struct {
	Staged      uint64 // copied by Write into registered memory
	Unstaged    uint64 // sent by SendBuffer from where they were
	Mapped      uint64 // copied by Write or SendBuffer to where the peer reads them: see Transport.DisableMappedRings
	Reassembled uint64 // copied aside, since no Read waited when they arrived
	Lent        uint64 // returned by RecvBuffer, or passed on by WriteTo, where they had landed
}

// Stalls counts, for senders, waits for each kind of credit.
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

// counters is what a Transport counts that is nobody else's.
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

// keepWire keeps what an ended session has counted.
func (c *counters) keepWire(s bootstrap.Stats) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onWire.Sent += s.Sent
	c.onWire.Received += s.Received
}

// wire is what ended sessions have counted.
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

// Stats returns a snapshot.
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
	out.Memory, out.Providers = t.budget.Stats(), t.endpoints.stats()
	return out
}
