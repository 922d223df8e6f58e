package progress

import (
	"runtime/metrics"
	"sync/atomic"
)

const (
	// A process collects garbage often once a collection comes with fewer than garbageWaits waits, and until
	// twice as many come with each. With requests and replies of 64 KiB, and a codec that allocates, there is a
	// collection for ten waits; in gRPC for 30 calls of 64 KiB, for 60 of 16 KiB, and for hundreds of 64 bytes, for
	// which polling gains a lot.
	garbageWaits = 32
	// garbageLook is how many waits there are at least between two looks.
	garbageLook = 8 * garbageWaits
)

// garbage finds out whether the process collects garbage often. Go's idle collectors run only on processors that no
// goroutine has, and one that polls has one: requests and replies of 64 KiB, one at a time, took 1.52 of the CPU time
// that they take over a Unix socket, and take 1.31, as without any polling (EPYC, libfabric 1.17, 20 rounds).
type garbage struct {
	cycles func() uint64 // how many collections there have been; nil: none. Called with spinners.mu held
	waits  atomic.Int64  // of all queues, since the last look
	often  atomic.Bool
	before uint64 // cycles at the last look; guarded by spinners.mu
}

// newCycles returns a function that asks Go's runtime for the number of collections, which takes less than 0.1 us.
func newCycles() func() uint64 {
	sample := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	return func() uint64 {
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
}

// look looks whether there have been enough waits to tell. After a pause it begins anew: collections during
// that have nothing to do with waits. spinners.mu is held.
func (g *garbage) look(pause bool) {
	waits := uint64(g.waits.Load())
	if g.cycles == nil || waits < garbageLook && !pause {
		return
	}
	now := g.cycles()
	switch n := (now - g.before) * garbageWaits; {
	case pause:
	case n > waits:
		g.often.Store(true)
	case 2*n <= waits:
		g.often.Store(false)
	}
	g.before = now
	g.waits.Add(-int64(waits))
}
