package engine

import "github.com/seed202c38ff/fabricnet/internal/engine/progress"

// Stats is a snapshot of an endpoint's counters.
type Stats struct {
	Provider       string
	Peers          int    // up or coming up
	Free           Free   // now
	Stale          int    // 1 if it takes no more peers: see RoomStale, RoomMute
	PeersLost      uint64 // ended, for any reason
	Streams        int    // conns that hold state, closing ones included
	FramesSent     uint64
	FramesReceived uint64
	FramesDropped  uint64 // without the right proof, or malformed
	FramesStray    uint64 // for a conn or a lease that is gone
	WritesStray    uint64 // completion data that is not believed, came twice, or is for a lease that is gone
	FramesHeld     uint64 // that arrived before what precedes them
	CreditFrames   uint64
	Violations     uint64 // peers that were cut off for breaking the protocol
	// Payload, in bytes: small data travels in frames, the rest by RDMA write or by copy to a mapped ring.
	SmallSent, SmallReceived uint64
	RDMASent, RDMAReceived   uint64
	RDMAWrites               uint64 // posted, and copies to mapped rings
	RDMAWritesReceived       uint64
	LeasesRevoked            uint64
	Heartbeats               uint64 // of peers over the fabric, and answers to ours
	Recalls                  uint64 // idle peers that were asked to give back receive slots
	Landing                  int64  // bytes mapped for landing rings
	Abandoned                uint64 // 1 if the endpoint was abandoned, since a call hung in the library
	Posted, Reaped           uint64 // operations and completions
	// Retries counts how often the fabric took operations, receives included, after it had
	// refused them: its queue was full, or the peer was not there yet.
	Retries        uint64
	CQErrors       uint64
	Polls          uint64 // of the completion queue
	PollsEmpty     uint64 // that found nothing
	Parks          uint64 // waits that ended up blocking
	DoorbellsRung  uint64
	DoorbellsHeard uint64
	Learnt         progress.Learnt
	Stalls         Stalls
	Copies         Copies

	pollsFull uint64 // polls that found something
	steps     uint64 // looks at peers and streams
}

// Copies counts bytes of payload by how they were copied, if at all, besides the copy
// into the buffer of a Read.
type Copies struct {
	Staged      uint64 // into memory that the fabric sends from
	Unstaged    uint64 // sent from a Buffer
	Mapped      uint64 // to where the peer reads them
	Reassembled uint64 // since no Read was waiting when they arrived
	Lent        uint64 // that RecvBuffer returned where they had landed
}

// Stalls counts what senders had to wait for.
type Stalls struct {
	Window    uint64 // the peer's receive window
	Ring      uint64 // the landing ring
	PeerSlots uint64 // the peer's receive slots
	SendSlots uint64 // send slots of this side
	Stage     uint64 // staging memory of this side
	Queue     uint64 // the fabric's transmit queue
	Memory    uint64 // the memory budget
}

// moved is all traffic in bytes. Each operation, and each completion, counts as 64 of them.
func (s *Stats) moved() uint64 {
	return s.SmallSent + s.SmallReceived + s.RDMASent + s.RDMAReceived + 64*(s.Posted+s.Reaped)
}
