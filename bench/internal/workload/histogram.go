package workload

import (
	"math/bits"
	"time"
)

const (
	subBits = 8                // values up to 1<<subBits ns are kept exactly
	half    = 1 << subBits / 2 // buckets per power of two above that
	buckets = (64-subBits+1)*half + half
)

// Histogram counts durations in buckets whose width is at most 1/128 of their
// value, so that any number of samples takes 58 KiB. It is not safe for
// concurrent use: each worker has its own, merged afterwards.
type Histogram struct {
	counts [buckets]uint64
	Total  uint64
}

// bucket returns the index of the bucket that v, in nanoseconds, belongs to.
func bucket(v uint64) int {
	shift := max(bits.Len64(v)-subBits, 0)
	return shift*half + int(v>>shift)
}

// middle returns the value in the middle of bucket i.
func middle(i int) time.Duration {
	shift := max(i/half-1, 0)
	low := uint64(i-shift*half) << shift
	return time.Duration(low + (1<<shift)/2)
}

// Add counts d.
func (h *Histogram) Add(d time.Duration) {
	h.counts[bucket(uint64(max(d, 0)))]++
	h.Total++
}

// Merge adds what o has counted.
func (h *Histogram) Merge(o *Histogram) {
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.Total += o.Total
}

// Counted returns how many samples are in each bucket that has any.
func (h *Histogram) Counted() map[int]uint64 {
	counts := make(map[int]uint64)
	for i, n := range h.counts {
		if n > 0 {
			counts[i] = n
		}
	}
	return counts
}

// AddCounted adds what counted has returned.
func (h *Histogram) AddCounted(counts map[int]uint64) {
	for i, n := range counts {
		h.counts[i] += n
		h.Total += n
	}
}

// Quantile returns the smallest duration that at least the share q, 0 to 1, of the samples does not
// exceed, to the precision of the histogram. It is 0 without samples.
func (h *Histogram) Quantile(q float64) time.Duration {
	rank := max(uint64(q*float64(h.Total)+0.5), 1)
	var seen uint64
	for i, n := range h.counts {
		if seen += n; seen >= rank {
			return middle(i)
		}
	}
	return 0
}
