package progress

import (
	"runtime"
	"sync/atomic"
)

// spinners counts the goroutines that poll and yield in a loop.
type spinners struct {
	n     atomic.Int32
	most  atomic.Int32 // limit, as of the last look
	limit func() int
}

// everybody counts them over all queues of the process. More than GOMAXPROCS-1 of them, or than
// there are processors less one, would starve everything else, Go's netpoller included.
var everybody = &spinners{limit: func() int { return min(runtime.GOMAXPROCS(0), runtime.NumCPU()) - 1 }}

// look notes how many goroutines may poll, and reports whether any may. To ask for GOMAXPROCS takes a lock of
// the scheduler's, so each epoch looks, and not each wait.
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
