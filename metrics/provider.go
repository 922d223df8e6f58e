package metrics

// ProviderStats has the counters of all endpoints of one provider, including closed ones.
type ProviderStats struct {
	// Endpoints is how many endpoints are open now. Over shared memory each peer has one, and
	// one more may be open for the next peer. Over other providers, the peers that are reached
	// from one local address share one, until it has no more quotas for peers, or takes none any
	// more. Then another one is opened beside it; there are up to 64. Stale is how many of them
	// take no more peers because more are dead than alive, nothing comes any more, or dead ones
	// hold much. They are closed when their last peer has gone.
	Endpoints int `metric:"endpoints" unit:"endpoint" help:"Fabric endpoints open."`
	Stale     int `metric:"endpoints.stale" unit:"endpoint" help:"Of these, those that take no more peers since most are dead, or nothing comes."`
	Peers     int `metric:"provider.peers" unit:"peer" help:"Peers reached through the provider."`
	Conns     int `metric:"provider.conns" unit:"conn" help:"Conns over the provider, closing ones included."`
	// LandingMemory is how many bytes are mapped for what peers write by RDMA or by copies. It
	// is given back when the conns of a peer have been idle for up to three seconds.
	LandingMemory int64 `metric:"landing.memory" unit:"By" help:"Memory mapped for what peers write by RDMA."`

	// BytesSent and BytesReceived are all data of conns. RDMABytesSent and RDMABytesReceived
	// are the part that travels by RDMA write or, to rings that both processes map, by a copy
	// that stands in for it: see Copies.Mapped.
	BytesSent          uint64 `metric:"sent" unit:"By" help:"Data of conns sent."`
	BytesReceived      uint64 `metric:"received" unit:"By" help:"Data of conns received."`
	RDMABytesSent      uint64 `metric:"rdma.sent" unit:"By" help:"Data sent by RDMA write, or by copies to mapped rings, also part of what is sent."`
	RDMABytesReceived  uint64 `metric:"rdma.received" unit:"By" help:"Data that arrived in landing rings, also part of what is received."`
	RDMAWrites         uint64 `metric:"rdma.writes.sent" unit:"write" help:"RDMA writes posted, and copies to mapped rings."`
	RDMAWritesReceived uint64 `metric:"rdma.writes.received" unit:"write" help:"Writes that have landed in rings."`
	WritesStray        uint64 `metric:"rdma.writes.stray" unit:"write" help:"RDMA writes into no landing ring that was granted."`
	FramesSent         uint64 `metric:"frames.sent" unit:"frame" help:"Messages sent, control frames included."`
	CreditFrames       uint64 `metric:"frames.credit" unit:"frame" help:"Of the messages sent, those that carry nothing but credit."`
	FramesReceived     uint64 `metric:"frames.received" unit:"frame" help:"Messages received, control frames included."`
	FramesDropped      uint64 `metric:"frames.dropped" unit:"frame" help:"Messages without the right proof, or malformed."`
	FramesStray        uint64 `metric:"frames.stray" unit:"frame" help:"Messages for conns or landing rings that are gone."`
	FramesHeld         uint64 `metric:"frames.held" unit:"frame" help:"Messages that arrived before what precedes them."`
	PeersLost          uint64 `metric:"peers.lost" unit:"peer" help:"Peers that have ended, for any reason."`
	Violations         uint64 `metric:"peers.violations" unit:"violation" help:"Peers cut off because they broke the protocol."`
	// Abandoned is how many endpoints were given up because a call hung in them after their
	// peer had died, or while it was stopped. What the library has mapped for them, some
	// mebibytes each, stays until the process ends.
	Abandoned     uint64 `metric:"endpoints.abandoned" unit:"endpoint" help:"Endpoints given up because a call into the library hung."`
	LeasesRevoked uint64 `metric:"leases.revoked" unit:"lease" help:"Landing rings taken back."`
	Posted        uint64 `metric:"operations.posted" unit:"operation" help:"Sends and writes posted."`
	// Retries is how often the fabric took operations, including receives, after it had
	// refused them for the moment, for example because a queue was full (EAGAIN).
	Retries  uint64 `metric:"operations.retried" unit:"retry" help:"Times that the fabric took operations after it had refused them for the moment."`
	Reaped   uint64 `metric:"cq.completions" unit:"completion" help:"Completions reaped."`
	CQErrors uint64 `metric:"cq.errors" unit:"error" help:"Operations that failed, and errors of completion queues."`
	// Polls and PollsEmpty are brought up to date when something is found, and before a
	// goroutine sleeps.
	Polls      uint64 `metric:"polls" unit:"poll" help:"Polls of completion queues."`
	PollsEmpty uint64 `metric:"polls.empty" unit:"poll" help:"Polls that found nothing."`
	// Parks counts each sleep of a wait, so one that is woken for others' sake may count twice.
	Parks         uint64 `metric:"parks" unit:"wait" help:"Waits that ended up blocking."`
	DoorbellsSent uint64 `metric:"doorbells.sent" unit:"doorbell" help:"Doorbells rung."`
	Polling       Polling
	Stalls        Stalls `metric:"stalls" unit:"stall" label:"reason" help:"Times that a sender had to wait."`
	Copies        Copies `metric:"data" unit:"By" label:"path" help:"Data by whether it was copied, besides the copy into Read's memory."`
}

// Polling is what endpoints have found out about polling. Each endpoint learns from the waits
// of its conns: see rdmanet.Transport.PollTime. It compares what waits cost on average with what
// they cost in trials, in which it polls if it usually does not, and does not if it usually does.
// The counters are brought up to date every few milliseconds of waiting. Not all waits are among them: none without
// PollTime, nor while too many endpoints are in use for any to poll.
type Polling struct {
	Endpoints int    `metric:"polling.endpoints" unit:"endpoint" help:"Endpoints that have peers, and on which a call that waits polls before it sleeps."`
	Hits      uint64 `metric:"polling.hits" unit:"wait" help:"Waits that polling has ended."`
	Misses    uint64 `metric:"polling.misses" unit:"wait" help:"Other waits from which something is learnt."`
	Trials    uint64 `metric:"polling.trials" unit:"trial" help:"Trials of polling, or of sleeping."`
	Changes   uint64 `metric:"polling.changes" unit:"change" help:"Changes from polling to sleeping, or back."`
}

// Stalls counts how often senders waited, by what they waited for.
type Stalls struct {
	Window    uint64 `is:"window"`     // the peer's receive window
	Ring      uint64 `is:"ring"`       // the peer's landing ring
	PeerSlots uint64 `is:"peer slots"` // the peer's receive slots
	SendSlots uint64 `is:"send slots"` // send slots of this side
	Stage     uint64 `is:"staging"`    // staging memory of this side
	Queue     uint64 `is:"queue"`      // the fabric's transmit queue
	Memory    uint64 `is:"memory"`     // the memory budget
}

// Copies counts, in bytes, what was copied and what was not, apart from the copy into the
// memory that Read was given.
type Copies struct {
	Staged      uint64 `is:"staged"`      // copied by Write into registered memory
	Unstaged    uint64 `is:"unstaged"`    // sent by SendBuffer from where it was
	Mapped      uint64 `is:"mapped"`      // copied by Write or SendBuffer to where the peer reads it
	Reassembled uint64 `is:"reassembled"` // copied aside, since no Read waited when it arrived
	Lent        uint64 `is:"lent"`        // returned by RecvBuffer, or passed on by WriteTo, where it had landed
}
