package engine

import "github.com/seed202c38ff/fabricnet/metrics"

// Stats is a snapshot of an endpoint's counters.
type Stats struct {
	metrics.ProviderStats
	Provider string
	Free     Free // now

	SmallSent, SmallReceived uint64 // payload that travels in frames, in bytes

	pollsFull uint64 // polls that found something
	steps     uint64 // looks at peers and streams
}

// moved is all traffic in bytes. Each operation, and each completion, counts as 64 of them.
func (s *Stats) moved() uint64 {
	return s.SmallSent + s.SmallReceived + s.RDMABytesSent + s.RDMABytesReceived + 64*(s.Posted+s.Reaped)
}
