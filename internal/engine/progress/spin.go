package progress

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// spinners counts the goroutines that poll and yield in a loop, and the queues on which something arrives. If
// there are more than crowd of these to each place to poll, no wait polls but for a peer that comes up. Whoever had a
// place would be served, and answered, a hundred times as fast as the others, which sleep: of 16 processes that did
// round trips with one server on two processors, a few made most of them.
type spinners struct {
	n     atomic.Int32
	most  atomic.Int32 // limit, as of the last look
	limit func() int

	// Queues are counted in rounds, which last for roundTime or until something is learnt after that.
	round  atomic.Uint32
	began  atomic.Int64 // when this round began
	active atomic.Int32 // queues in it so far
	last   atomic.Int32 // queues in the one before

	mu sync.Mutex // held by the goroutine that turns a round
	garbage
}

const (
	crowd     = 4
	roundTime = 10 * time.Millisecond
	// pauseTime is a round so long that nothing was learnt for most of it.
	pauseTime = 10 * roundTime
)

// crowded reports whether there are too many queues in use for waits to poll.
func (s *spinners) crowded() bool { return s.last.Load() > crowd*s.most.Load() }

// count counts a queue on which something has arrived. counted is for it to remember its last round.
func (s *spinners) count(counted *uint32) {
	if r := s.round.Load() + 1; *counted != r {
		*counted = r
		s.active.Add(1)
	}
}

// over reports whether the round is, and how long it has lasted. Clocks may differ: see testing/synctest.
func (s *spinners) over(now time.Duration) (lasted time.Duration, over bool) {
	lasted = now - time.Duration(s.began.Load())
	return lasted, lasted > roundTime || lasted < -roundTime
}

// turn begins the next round if it is time to.
func (s *spinners) turn(now time.Duration) {
	if _, over := s.over(now); !over || !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	if lasted, over := s.over(now); over {
		s.began.Store(int64(now))
		s.look()
		s.round.Add(1)
		pause, n := lasted > pauseTime || lasted < 0, s.active.Swap(0)
		if pause {
			n = 0 // these were not in use at the same time
		}
		s.last.Store(n)
		s.garbage.look(pause)
	}
}

// everybody counts them over all queues of the process. More than GOMAXPROCS-1 of them, or than
// there are processors less one, would starve everything else, Go's netpoller included.
var everybody = &spinners{
	limit:   func() int { return min(runtime.GOMAXPROCS(0), runtime.NumCPU()) - 1 },
	garbage: garbage{cycles: newCycles()},
}

// look notes how many goroutines may poll, and reports whether any may. To ask for GOMAXPROCS takes a lock of
// the scheduler's, so each epoch and each round looks, and not each wait.
func (s *spinners) look() bool {
	most := s.limit()
	s.most.Store(int32(most))
	return most > 0
}

// Spinners returns how many goroutines of the process poll in a loop.
func Spinners() int { return int(everybody.n.Load()) }

func (s *spinners) start() bool {
	if s.n.Add(1) > s.most.Load() {
		s.n.Add(-1)
		return false
	}
	return true
}

func (s *spinners) stop() { s.n.Add(-1) }

// politePolls is how many polls in vain there are before a goroutine that waits for a peer to come up has its
// thread make way for others, too: the peer may need this processor. Other waits do not: on a busy host a
// turn that is given away comes back only after milliseconds.
const politePolls = 192

// yield lets other goroutines run. i is how many polls in vain there have been.
func (p *Poller) yield(w *Waiter, i int) {
	p.sched.yield()
	if w.joins && i >= politePolls && i%clockEach == 0 {
		p.sched.yieldThread()
	}
}
