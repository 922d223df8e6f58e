package metrics

import "github.com/seed202c38ff/fabricnet/rdmanet"

type (
	ts = rdmanet.TransportStats
	ps = rdmanet.ProviderStats
)

func gauge(n int64) uint64 { return uint64(max(0, n)) }

var (
	byReason   = []string{"reason"}
	byProvider = []string{"provider"}
)

var transport = []transportMetric{
	{Desc: Desc{"fabricnet.conns", "{conn}", "Conns open over a fabric.", false, nil}, value: func(s *ts) uint64 { return gauge(int64(s.Conns)) }},
	{Desc: Desc{"fabricnet.tcp.conns", "{conn}", "Conns open over plain TCP.", false, nil}, value: func(s *ts) uint64 { return gauge(int64(s.TCPConns)) }},
	{Desc: Desc{"fabricnet.backlog", "{conn}", "Conns that wait for Accept.", false, nil}, value: func(s *ts) uint64 { return gauge(int64(s.Backlog)) }},
	{Desc: Desc{"fabricnet.peers", "{peer}", "Peer processes, dialed or accepted.", false, nil}, value: func(s *ts) uint64 { return gauge(int64(s.Peers)) }},
	{Desc: Desc{"fabricnet.peers.refused", "{peer}", "Peers for which a provider, or a listener, had no place.", true, nil}, value: func(s *ts) uint64 { return s.PeersRefused }},
	{Desc: Desc{"fabricnet.handshakes", "{handshake}", "Handshakes that listeners run now.", false, nil}, value: func(s *ts) uint64 { return gauge(int64(s.Handshakes)) }},
	{Desc: Desc{"fabricnet.conns.opened", "{conn}", "Conns dialed over a fabric, or taken by a listener's backlog.", true, nil}, value: func(s *ts) uint64 { return s.Opened }},
	{Desc: Desc{"fabricnet.conns.refused", "{conn}", "Conns that listeners have refused.", true, nil}, value: func(s *ts) uint64 { return s.Refused }},
	{Desc: Desc{"fabricnet.handshakes.failed", "{handshake}", "Handshakes that came to nothing, on either side.", true, byReason}, values: func(s *ts) map[string]uint64 { return s.HandshakeFailures }},
	{Desc: Desc{"fabricnet.fallbacks", "{conn}", "Dials that ended up with plain TCP.", true, byReason}, values: func(s *ts) map[string]uint64 { return s.Fallbacks }},
	{Desc: Desc{"fabricnet.paths.failed", "{check}", "Path checks that failed at dials: wrong contents arrived, or nothing.", true, byProvider}, values: func(s *ts) map[string]uint64 { return s.PathFailures }},
	{Desc: Desc{"fabricnet.events.dropped", "{event}", "Events that loggers were too slow for.", true, nil}, value: func(s *ts) uint64 { return s.EventsDropped }},
	{Desc: Desc{"fabricnet.memory.limit", "By", "Transport.MemoryLimit.", false, nil}, value: func(s *ts) uint64 { return gauge(s.Memory.Limit) }},
	{Desc: Desc{"fabricnet.memory.used", "By", "Memory mapped or promised for data.", false, nil}, value: func(s *ts) uint64 { return gauge(s.Memory.Used) }},
	{Desc: Desc{"fabricnet.memory.foreign", "By", "Memory of peers' landing rings that is mapped, for which they pay.", false, nil}, value: func(s *ts) uint64 { return gauge(s.Memory.Foreign) }},
	{Desc: Desc{"fabricnet.memory.mapped", "By", "Memory mapped for data: what is used, but for what is only promised.", false, nil}, value: func(s *ts) uint64 { return gauge(s.Memory.Mapped) }},
	{Desc: Desc{"fabricnet.memory.peak", "By", "The most that the memory used has been.", false, nil}, value: func(s *ts) uint64 { return gauge(s.Memory.High) }},
	{Desc: Desc{"fabricnet.control.sent", "By", "Sent on control connections since their handshakes.", true, nil}, value: func(s *ts) uint64 { return s.ControlSent }},
	{Desc: Desc{"fabricnet.control.received", "By", "Received on control connections since their handshakes.", true, nil}, value: func(s *ts) uint64 { return s.ControlReceived }},
}

var provider = []providerMetric{
	{Desc: Desc{"fabricnet.endpoints", "{endpoint}", "Fabric endpoints open.", false, byProvider}, value: func(s *ps) uint64 { return gauge(int64(s.Endpoints)) }},
	{Desc: Desc{"fabricnet.endpoints.stale", "{endpoint}", "Of these, those that take no more peers since dead ones hold much of them.", false, byProvider}, value: func(s *ps) uint64 { return gauge(int64(s.Stale)) }},
	{Desc: Desc{"fabricnet.provider.peers", "{peer}", "Peers reached through the provider.", false, byProvider}, value: func(s *ps) uint64 { return gauge(int64(s.Peers)) }},
	{Desc: Desc{"fabricnet.provider.conns", "{conn}", "Conns over the provider, closing ones included.", false, byProvider}, value: func(s *ps) uint64 { return gauge(int64(s.Conns)) }},
	{Desc: Desc{"fabricnet.landing.memory", "By", "Memory mapped for what peers write by RDMA.", false, byProvider}, value: func(s *ps) uint64 { return gauge(s.LandingMemory) }},
	counter("sent", "By", "Data of conns sent.", func(s *ps) uint64 { return s.BytesSent }),
	counter("received", "By", "Data of conns received.", func(s *ps) uint64 { return s.BytesReceived }),
	counter("rdma.sent", "By", "Data sent by RDMA write, or by copies to mapped rings, also part of what is sent.", func(s *ps) uint64 { return s.RDMABytesSent }),
	counter("rdma.received", "By", "Data that arrived in landing rings, also part of what is received.", func(s *ps) uint64 { return s.RDMABytesReceived }),
	counter("rdma.writes.sent", "{write}", "RDMA writes posted, and copies to mapped rings.", func(s *ps) uint64 { return s.RDMAWrites }),
	counter("rdma.writes.received", "{write}", "Writes that have landed in rings.", func(s *ps) uint64 { return s.RDMAWritesReceived }),
	counter("rdma.writes.stray", "{write}", "RDMA writes into no landing ring that was granted.", func(s *ps) uint64 { return s.WritesStray }),
	counter("frames.sent", "{frame}", "Messages sent, control frames included.", func(s *ps) uint64 { return s.FramesSent }),
	counter("frames.received", "{frame}", "Messages received, control frames included.", func(s *ps) uint64 { return s.FramesReceived }),
	counter("frames.dropped", "{frame}", "Messages without the right proof, or malformed.", func(s *ps) uint64 { return s.FramesDropped }),
	counter("frames.stray", "{frame}", "Messages for conns that are gone.", func(s *ps) uint64 { return s.FramesStray }),
	counter("frames.held", "{frame}", "Messages that arrived before what precedes them.", func(s *ps) uint64 { return s.FramesHeld }),
	counter("peers.lost", "{peer}", "Peers that have ended, for any reason.", func(s *ps) uint64 { return s.PeersLost }),
	counter("peers.violations", "{violation}", "Peers cut off because they broke the protocol.", func(s *ps) uint64 { return s.Violations }),
	counter("endpoints.abandoned", "{endpoint}", "Endpoints given up because a call into the library hung.", func(s *ps) uint64 { return s.Abandoned }),
	counter("leases.revoked", "{lease}", "Landing rings taken back.", func(s *ps) uint64 { return s.LeasesRevoked }),
	counter("operations.posted", "{operation}", "Sends and writes posted.", func(s *ps) uint64 { return s.Posted }),
	counter("operations.retried", "{retry}", "Times that the fabric took operations after it had refused them for the moment.", func(s *ps) uint64 { return s.Retries }),
	counter("cq.completions", "{completion}", "Completions reaped.", func(s *ps) uint64 { return s.Reaped }),
	counter("cq.errors", "{error}", "Operations that failed, and errors of completion queues.", func(s *ps) uint64 { return s.CQErrors }),
	counter("polls", "{poll}", "Polls of completion queues.", func(s *ps) uint64 { return s.Polls }),
	counter("polls.empty", "{poll}", "Polls that found nothing.", func(s *ps) uint64 { return s.PollsEmpty }),
	counter("parks", "{wait}", "Waits that ended up blocking.", func(s *ps) uint64 { return s.Parks }),
	counter("doorbells.sent", "{doorbell}", "Doorbells rung.", func(s *ps) uint64 { return s.DoorbellsSent }),
	counter("doorbells.received", "{doorbell}", "Doorbells heard.", func(s *ps) uint64 { return s.DoorbellsGot }),
	{Desc: Desc{"fabricnet.polling.endpoints", "{endpoint}", "Endpoints on which calls poll before they sleep.", false, byProvider}, value: func(s *ps) uint64 { return gauge(int64(s.Polling.Endpoints)) }},
	counter("polling.hits", "{wait}", "Waits that polling has ended.", func(s *ps) uint64 { return s.Polling.Hits }),
	counter("polling.misses", "{wait}", "Other waits.", func(s *ps) uint64 { return s.Polling.Misses }),
	counter("polling.trials", "{trial}", "Trials of polling, or of sleeping.", func(s *ps) uint64 { return s.Polling.Trials }),
	counter("polling.changes", "{change}", "Changes from polling to sleeping, or back.", func(s *ps) uint64 { return s.Polling.Changes }),
	{Desc: Desc{"fabricnet.stalls", "{stall}", "Times that a sender had to wait.", true, []string{"provider", "reason"}}, values: stalls},
	{Desc: Desc{"fabricnet.data", "By", "Data by whether it was copied, besides the copy into Read's memory.", true, []string{"provider", "path"}}, values: paths},
}

func counter(name, unit, help string, value func(*ps) uint64) providerMetric {
	return providerMetric{Desc: Desc{"fabricnet." + name, unit, help, true, byProvider}, value: value}
}

func stalls(s *ps) map[string]uint64 {
	return map[string]uint64{
		rdmanet.StallWindow: s.Stalls.Window, rdmanet.StallRing: s.Stalls.Ring,
		rdmanet.StallPeerSlots: s.Stalls.PeerSlots, rdmanet.StallSendSlots: s.Stalls.SendSlots,
		rdmanet.StallStaging: s.Stalls.Stage, rdmanet.StallQueue: s.Stalls.Queue, rdmanet.StallMemory: s.Stalls.Memory,
	}
}

func paths(s *ps) map[string]uint64 {
	return map[string]uint64{
		"staged": s.Copies.Staged, "unstaged": s.Copies.Unstaged, "mapped": s.Copies.Mapped, "reassembled": s.Copies.Reassembled, "lent": s.Copies.Lent,
	}
}
