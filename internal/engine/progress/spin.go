package progress

import (
	"runtime"
	"sync/atomic"
)

// spinners counts the goroutines that poll and yield in a loop.
type spinners struct {
	n     atomic.Int32
	limit func() int
}

// everybody counts them over all queues of the process. More than GOMAXPROCS-1 of them, or than
// there are processors less one, would starve everything else, Go's netpoller included.
var everybody = &spinners{limit: func() int { return min(runtime.GOMAXPROCS(0), runtime.NumCPU()) - 1 }}

// Spinners returns how many goroutines of the process poll in a loop.
func Spinners() int { return int(everybody.n.Load()) }

func (s *spinners) start() bool {
	if s.n.Add(1) > int32(s.limit()) {
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
