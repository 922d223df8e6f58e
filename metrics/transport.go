package metrics

// TransportStats is a snapshot of what a Transport has, and of what it has done.
type TransportStats struct {
	Conns   int `metric:"conns" unit:"conn" help:"Conns open over a fabric, including those that wait for Accept."`
	Backlog int `metric:"backlog" unit:"conn" help:"Conns that wait for Accept."`
	Peers   int `metric:"peers" unit:"peer" help:"Peer processes, dialed or accepted."`
	// PeersRefused is how often a peer, dialed or accepted, got no place: with a provider,
	// since there may be no further endpoint (see ProviderStats.Endpoints and
	// rdmanet.Transport.MaxShmPeers), or with a listener (see rdmanet.ListenConfig.MaxPeers).
	PeersRefused uint64 `metric:"peers.refused" unit:"peer" help:"Peers for which a provider, or a listener, had no place."`
	// Handshakes include those with peers that say nothing.
	Handshakes int    `metric:"handshakes" unit:"handshake" help:"Handshakes that listeners run now."`
	Opened     uint64 `metric:"conns.opened" unit:"conn" help:"Conns dialed over a fabric, or taken by a listener's backlog."`
	// TCPConns were handed out as they are, so that nobody knows when they are closed.
	TCPConns uint64 `metric:"conns.tcp" unit:"conn" help:"Conns handed out that use plain TCP: dials that fell back, and plain clients that were accepted."`
	// Dropped counts bugs of the program: what it does not use any more has to be closed.
	Dropped uint64 `metric:"dropped" unit:"conn" help:"Conns and listeners that became garbage without Close."`
	// Listeners refuse conns because the backlog is full, the memory budget is used up or the
	// listener is closed.
	Refused uint64 `metric:"conns.refused" unit:"conn" help:"Conns that listeners have refused."`
	// HandshakeFailures and Fallbacks count by reason: rdmanet.FailureTimeout and the like.
	HandshakeFailures map[string]uint64 `metric:"handshakes.failed" unit:"handshake" label:"reason" help:"Handshakes that came to nothing, on either side."`
	Fallbacks         map[string]uint64 `metric:"fallbacks" unit:"conn" label:"reason" help:"Dials that ended up with plain TCP."`
	// PathFailures counts path checks that failed in dials: wrong contents arrived, or nothing
	// arrived although the peer answered over TCP.
	PathFailures map[string]uint64 `metric:"paths.failed" unit:"check" label:"provider" help:"Path checks that failed at dials: wrong contents arrived, or nothing."`
	// Up to 256 events wait for a logger, at most 128 of them at debug level.
	EventsDropped uint64 `metric:"events.dropped" unit:"event" help:"Events that loggers were too slow for."`
	Memory        MemoryStats
	// The control connections' handshakes are not counted.
	ControlSent     uint64 `metric:"control.sent" unit:"By" help:"Sent on control connections since their handshakes."`
	ControlReceived uint64 `metric:"control.received" unit:"By" help:"Received on control connections since their handshakes."`
	// Providers has the counters of each provider that was used.
	Providers map[string]ProviderStats `label:"provider"`
}

// MemoryStats says how much of the memory budget is used, in bytes.
type MemoryStats struct {
	Limit   int64 `metric:"memory.limit" unit:"By" help:"Transport.MemoryLimit."`
	Used    int64 `metric:"memory.used" unit:"By" help:"Memory mapped or promised for data."`
	High    int64 `metric:"memory.peak" unit:"By" help:"The most that the memory used has been."`
	Mapped  int64 `metric:"memory.mapped" unit:"By" help:"Memory mapped for data: what is used, but for what is only promised."`
	Foreign int64 `metric:"memory.foreign" unit:"By" help:"Memory of peers' landing rings that is mapped, for which they pay: no more than the limit."`
}
