package pool

import "time"

// Copier copies into memory that another core has read before, such as a
// staging chunk whose last contents a peer has fetched. If that core shares no
// cache with this one, every line must first be called back from there, which can
// make the copy twenty times as slow as any other. Stores that bypass the caches
// avoid that; the price is that the reader then fetches from memory. Processes move
// between cores, and under a hypervisor above all, so a Copier measures, and tries
// an ordinary copy again from time to time. The zero value is ready to use. A Copier
// is not safe for concurrent use.
type Copier struct {
	past bool
	slow int // ordinary copies in a row that were slow
	left int // copies until an ordinary one is tried again
}

const (
	// slowRate is the rate, in bytes per microsecond, below which a copy is slow. It is
	// well above what a copy into lines of a distant core reaches, and well below what
	// any other copy reaches.
	slowRate = 8000
	// slowRow is how many slow copies in a row it takes to bypass the caches: a single
	// one may be due to an interrupt.
	slowRow = 3
	// pastRow is how many copies bypass the caches before the next try.
	pastRow = 512
	// minTimed is the size in bytes from which a copy takes long enough to be timed.
	minTimed = 16 << 10
)

// Copy does what copy(dst, src) does.
func (c *Copier) Copy(dst, src []byte) int {
	n := min(len(dst), len(src))
	if n < minTimed {
		return copy(dst, src)
	}
	if c.past {
		if c.left--; c.left > 0 {
			return copyPast(dst, src)
		}
		c.past, c.slow = false, 0
	}
	start := time.Now()
	copy(dst, src)
	c.note(n, time.Since(start))
	return n
}

// note learns from how long an ordinary copy of n bytes took.
func (c *Copier) note(n int, took time.Duration) {
	if took < time.Duration(n)*time.Microsecond/slowRate {
		c.slow = 0
	} else if c.slow++; c.slow == slowRow {
		c.past, c.left = true, pastRow
	}
}
