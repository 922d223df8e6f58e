package report

import (
	"slices"
	"time"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// Result is a case with the medians of its rounds. One failed round fails the case: then Error says
// why, and the figures are 0.
type Result struct {
	workload.Case
	P50us     float64 `json:"p50_us"`        // of one operation; for bw of one Write
	P50Best   float64 `json:"p50_best_us"`   // the least of the rounds' p50s
	P90us     float64 `json:"p90_us"`        // like p50_us; 0 in files from before it was kept
	P99us     float64 `json:"p99_us"`        // like p50_us
	P999us    float64 `json:"p999_us"`       // like p90_us
	P99Pooled float64 `json:"p99_pooled_us"` // of the operations of all rounds together; like p90_us
	OpsPerS   float64 `json:"ops_per_s"`
	GBPerS    float64 `json:"gb_per_s"`      // 1e9 bytes of payload, one way
	CPUusPer  float64 `json:"cpu_us_per_op"` // both processes
	CPUsPerGB float64 `json:"cpu_s_per_gb"`  // both processes
	Mallocs   float64 `json:"allocs_per_op"` // of Go memory, both processes
	// Fairness is Jain's index over what the conns have moved, 1 at best: for
	// bw and zc on several conns, and for several peers.
	Fairness float64 `json:"fairness,omitempty"`
	// For idle: the CPU time of the process that used more of it, in percent of one core, and bytes
	// for each conn after the first, in the process that has more of them.
	CPUPercent float64 `json:"cpu_percent,omitempty"`
	Registered float64 `json:"registered_per_conn,omitempty"`
	Resident   float64 `json:"resident_per_conn,omitempty"`
	ColdUs     float64 `json:"cold_us,omitempty"` // for first conns, the first one of a client
	// For idle with peers: bytes in the server for each peer after the first, and
	// bytes in a client since before it dialed. Used and mapped are MemoryStats'.
	ServerUsed     float64 `json:"server_used_per_peer,omitempty"`
	ServerMapped   float64 `json:"server_mapped_per_peer,omitempty"`
	ServerResident float64 `json:"server_resident_per_peer,omitempty"`
	ClientUsed     float64 `json:"client_used,omitempty"`
	ClientMapped   float64 `json:"client_mapped,omitempty"`
	ClientResident float64 `json:"client_resident,omitempty"`

	Rounds int    `json:"rounds"`
	Error  string `json:"error,omitempty"`
	// NotPossible says why there can be no figures.
	NotPossible string `json:"not_possible,omitempty"`
	// Samples are the rounds. Files from before they were kept have none.
	Samples []workload.Sample `json:"samples,omitempty"`
}

// Summarize takes the median of each figure over the rounds.
func Summarize(c workload.Case, rounds []workload.Sample) Result {
	over := func(figure func(workload.Sample) float64) float64 {
		values := make([]float64, len(rounds))
		for i, s := range rounds {
			values[i] = figure(s)
		}
		return median(values)
	}
	bytes := func(s workload.Sample) float64 { return float64(s.Ops) * float64(c.Size) }
	r := Result{
		Case:      c,
		P50us:     over(func(s workload.Sample) float64 { return micros(s.P50) }),
		P90us:     over(func(s workload.Sample) float64 { return micros(s.P90) }),
		P99us:     over(func(s workload.Sample) float64 { return micros(s.P99) }),
		P999us:    over(func(s workload.Sample) float64 { return micros(s.P999) }),
		OpsPerS:   over(func(s workload.Sample) float64 { return ratio(float64(s.Ops), s.Elapsed.Seconds()) }),
		GBPerS:    over(func(s workload.Sample) float64 { return ratio(bytes(s)/1e9, s.Elapsed.Seconds()) }),
		CPUusPer:  over(func(s workload.Sample) float64 { return ratio(micros(s.CPU()), float64(s.Ops)) }),
		CPUsPerGB: over(func(s workload.Sample) float64 { return ratio(s.CPU().Seconds(), bytes(s)/1e9) }),
		Mallocs:   over(func(s workload.Sample) float64 { return ratio(float64(s.Mallocs()), float64(s.Ops)) }),
		Rounds:    len(rounds),
		Samples:   rounds,
	}
	r.P99Pooled = pooledP99(rounds)
	for i, s := range rounds {
		if p50 := micros(s.P50); i == 0 || p50 < r.P50Best {
			r.P50Best = p50
		}
	}
	switch {
	case c.Mode == workload.ModeFirst:
		r.ColdUs = over(func(s workload.Sample) float64 { return micros(s.Cold) })
	case c.Mode == workload.ModeIdle && c.Idle > 0:
		others := float64(c.Idle - 1)
		r.CPUPercent = over(func(s workload.Sample) float64 { return 100 * ratio(float64(s.Server.CPU), float64(s.Elapsed)) })
		r.ServerUsed = over(func(s workload.Sample) float64 { return ratio(float64(s.Server.Used), others) })
		r.ServerMapped = over(func(s workload.Sample) float64 { return ratio(float64(s.Server.Mapped), others) })
		r.ServerResident = over(func(s workload.Sample) float64 { return ratio(float64(s.Server.Resident), others) })
		r.ClientUsed = over(func(s workload.Sample) float64 { return float64(s.Client.Used) })
		r.ClientMapped = over(func(s workload.Sample) float64 { return float64(s.Client.Mapped) })
		r.ClientResident = over(func(s workload.Sample) float64 { return float64(s.Client.Resident) })
	case c.Mode == workload.ModeIdle:
		more := func(c, s int64) float64 { return float64(max(c, s)) }
		added := float64(c.Conns - 1)
		r.CPUPercent = over(func(s workload.Sample) float64 {
			return 100 * ratio(more(int64(s.Client.CPU), int64(s.Server.CPU)), float64(s.Elapsed))
		})
		r.Registered = over(func(s workload.Sample) float64 { return ratio(more(s.Client.Registered, s.Server.Registered), added) })
		r.Resident = over(func(s workload.Sample) float64 { return ratio(more(s.Client.Resident, s.Server.Resident), added) })
	case c.Busy > 1, c.Conns > 1 && (c.Mode == workload.ModeBW || c.Mode == workload.ModeZC):
		r.Fairness = over(func(s workload.Sample) float64 { return s.Fairness })
	}
	return r
}

// pooledP99 returns the 99th percentile of the operations of all rounds, in microseconds. It is 0
// if their times were not kept.
func pooledP99(rounds []workload.Sample) float64 {
	var all workload.Histogram
	for _, s := range rounds {
		if s.Times == nil {
			return 0
		}
		all.AddCounted(s.Times)
	}
	return micros(all.Quantile(0.99))
}

// ratiosTo returns the ratios of f in each round to the other's g in the same round, and of f's
// median to g's best round.
func (r Result) ratiosTo(other Result, f, g figure) (ratios []float64, toBest float64) {
	var all []float64 // g's
	for i := range min(len(r.Samples), len(other.Samples)) {
		base := g.of(Summarize(other.Case, other.Samples[i:i+1]))
		all = append(all, base)
		ratios = append(ratios, ratio(f.of(Summarize(r.Case, r.Samples[i:i+1])), base))
	}
	if len(all) == 0 {
		return nil, 0
	}
	best := slices.Min(all)
	if g.higher {
		best = slices.Max(all)
	}
	return ratios, ratio(f.of(r), best)
}

// toAlone returns how f compares with that of a peer alone: the median of the ratios in each round,
// 0 if there are none.
func (r Result) toAlone(f figure) float64 { return median(r.ratiosToAlone(f)) }

func (r Result) ratiosToAlone(f figure) (ratios []float64) {
	for _, s := range r.Samples {
		if s.Alone != nil {
			ratios = append(ratios, ratio(f.of(Summarize(r.Case, []workload.Sample{s})), f.of(Summarize(r.Case, []workload.Sample{*s.Alone}))))
		}
	}
	return ratios
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// median returns the middle value, or the mean of the two middle ones if there are two, or 0 if
// there are no values. It sorts values.
func median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return 0
	}
	slices.Sort(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
