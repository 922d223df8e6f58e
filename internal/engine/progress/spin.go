package progress

import (
	"runtime"
	"sync/atomic"
	"time"
)

// spinners counts goroutines that poll and yield in a loop.
type spinners struct {
	n     atomic.Int32
	limit func() int
}

// everybody counts them over all queues of the process: more than GOMAXPROCS-1 would
// starve everything else, Go's netpoller included.
var everybody = &spinners{limit: func() int { return min(runtime.GOMAXPROCS(0), runtime.NumCPU()) - 1 }}

// Spinners is how many goroutines of the process poll in a loop.
func Spinners() int { return int(everybody.n.Load()) }

func (s *spinners) start() bool {
	if s.n.Add(1) > int32(s.limit()) {
		s.n.Add(-1)
		return false
	}
	return true
}

func (s *spinners) stop() { s.n.Add(-1) }

// lend lets a driver have what pollForOthers's start has brought. It returns a number that is
// not 0, unless another goroutine that polls the queue for others has lent its own.
func (p *Poller) lend() uint32 {
	n := max(1, p.lends.Add(1))
	if !p.lent.CompareAndSwap(0, n) {
		return 0
	}
	return n
}

// takeSpin takes over from a goroutine that polls this queue for others, and ends that.
func (p *Poller) takeSpin() bool {
	n := p.lent.Load()
	return n != 0 && p.lent.CompareAndSwap(n, 0)
}

// Whoever polls in vain for long has its thread make way for others: what it waits for may
// need this processor, as the peer does, or a garbage collection of either. It does not
// where that has it wait for programs that compute, which stop for nobody: on a busy host a
// turn given away comes back after milliseconds, as two of the last eight do. One does after a
// garbage collection, too.
const (
	politePolls = 192 // in vain, some 50 us
	computes    = 2 * time.Millisecond
	rudeShare   = 64 // for so many times what it has cost, or mostRude, it makes way no more
	mostRude    = 3 * time.Second
)

// yield lets others run, after i polls.
func (p *Poller) yield(i int) {
	p.sched.yield()
	if i < politePolls || i%clockEach != 0 {
		return
	}
	now := p.clock.Now()
	if now < p.own.rude {
		return
	}
	p.sched.yieldThread()
	p.own.late <<= 1
	away := p.clock.Now() - now
	if away < computes {
		return
	}
	if p.own.late > 0 {
		p.own.rude = now + min(rudeShare*away, mostRude)
	}
	p.own.late |= 1
}
