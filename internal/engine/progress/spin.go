package progress

import (
	"runtime"
	"sync/atomic"
	"time"
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

// lend lets a driver take over the permission to spin that pollForOthers got from spinners.start. It
// returns the permission's number, which is not 0, or 0 if another goroutine that polls the queue for
// others has already lent its own.
func (p *Poller) lend() uint32 {
	n := max(1, p.lends.Add(1))
	if !p.lent.CompareAndSwap(0, n) {
		return 0
	}
	return n
}

// takeSpin takes over the permission to spin of a goroutine that polls this queue for others, which
// then stops spinning. It reports whether there was one.
func (p *Poller) takeSpin() bool {
	n := p.lent.Load()
	return n != 0 && p.lent.CompareAndSwap(n, 0)
}

// A goroutine that has polled in vain for long has its thread make way for others: what it waits for
// may need this processor, such as the peer, or a garbage collection on either side. It stops doing so
// where it would have to wait for programs that compute and give way to nobody: on a busy host a turn
// that is given away comes back only after milliseconds. Two late turns of the last eight are the sign,
// since a single one may be late because of a garbage collection.
const (
	politePolls = 192                  // polls in vain before it makes way, some 50 us
	computes    = 2 * time.Millisecond // a turn that takes this long to come back is late
	rudeShare   = 64                   // it then makes no way for this many times what the turn has cost,
	mostRude    = 3 * time.Second      // but no longer than this
)

// yield lets other goroutines run, and after many polls in vain other threads, too. i is how many
// there have been.
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
