package workload

import "time"

// Sample is what one round of one case has measured. Times are in nanoseconds.
type Sample struct {
	Ops      uint64        `json:"ops"`
	Elapsed  time.Duration `json:"elapsed_ns"`
	P50      time.Duration `json:"p50_ns"`
	P90      time.Duration `json:"p90_ns"` // 0 for rsockets, whose figures are means
	P99      time.Duration `json:"p99_ns"`
	P999     time.Duration `json:"p999_ns"`  // like P90
	Fairness float64       `json:"fairness"` // Jain's index over the conns' shares

	Client Usage `json:"client"`
	Server Usage `json:"server"`

	// Cold is, for first conns, how long the very first one took.
	Cold time.Duration `json:"cold_ns,omitempty"`

	// Times says how long the operations took, in a histogram's buckets. It is nil for what was
	// read from a file, and for rsockets.
	Times map[int]uint64 `json:"-"`

	// Alone is, for one peer among idle ones, what a peer with a server of its own did right before
	// or after.
	Alone *Sample `json:"alone,omitempty"`
}

// Take makes the sample one of h's operations.
func (s *Sample) Take(h *Histogram) {
	s.Ops, s.P50, s.P90, s.P99, s.P999 = h.Total, h.Quantile(0.50), h.Quantile(0.90), h.Quantile(0.99), h.Quantile(0.999)
}

// CPU returns the CPU time of both processes.
func (s Sample) CPU() time.Duration { return s.Client.CPU + s.Server.CPU }

// Mallocs returns the allocations of both processes.
func (s Sample) Mallocs() uint64 { return s.Client.Mallocs + s.Server.Mallocs }

// Usage is what a process has used so far.
type Usage struct {
	CPU     time.Duration `json:"cpu_ns"`
	Mallocs uint64        `json:"mallocs"` // allocations of Go memory
	// In mode idle, bytes that have come with the conns after the first one: memory that the fabric
	// may access, and all that is resident. With peers, bytes that have come since the mark, and so
	// are MemoryStats' figures.
	Registered int64 `json:"registered,omitempty"`
	Resident   int64 `json:"resident,omitempty"`
	Used       int64 `json:"used,omitempty"`
	Mapped     int64 `json:"mapped,omitempty"`
	Conns      int   `json:"conns,omitempty"` // of a server with peers, now
}

// Since returns what was used after earlier. The memory is what there is now.
func (u Usage) Since(earlier Usage) Usage {
	u.CPU -= earlier.CPU
	u.Mallocs -= earlier.Mallocs
	return u
}

// Plus returns what both have used together. The memory is u's.
func (u Usage) Plus(o Usage) Usage {
	u.CPU += o.CPU
	u.Mallocs += o.Mallocs
	return u
}
