package progress

import (
	"runtime"
	"time"
)

// sched is how goroutines wait for each other. The model test plugs in a scheduler of its own, which
// runs them as coroutines on one thread.
type sched struct {
	model scheduler // nil otherwise
}

type scheduler interface {
	step()                   // others may run here
	block(until func() bool) // others run until it returns true
	spawn(f func())
}

// step marks a place where other goroutines may come between two accesses to shared state.
func (s *sched) step() {
	if s.model != nil {
		s.model.step()
	}
}

func (s *sched) yield() {
	if s.model != nil {
		s.model.step()
		return
	}
	runtime.Gosched()
}

// yieldThread lets another thread have the processor. Goroutines that poll call it.
func (s *sched) yieldThread() {
	if s.model != nil {
		s.model.step()
		return
	}
	yieldThread()
}

// wake puts a token into a channel that holds one.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// A provider may report again and again that it is unsafe to sleep, with nothing to reap in
// between. After some yields it is asked less and less often, so that such a provider costs latency
// but not a whole processor.
const (
	unsafeYields = 64
	minPause     = 10 * time.Microsecond
	maxPause     = time.Millisecond
)

// pause comes between two looks, the try-th and the next, at a queue that is not safe to sleep on.
func (s *sched) pause(try int) {
	if try < unsafeYields || s.model != nil {
		s.yield()
		return
	}
	time.Sleep(min(minPause<<min(try-unsafeYields, 16), maxPause))
}

func (s *sched) spawn(f func()) {
	if s.model != nil {
		s.model.spawn(f)
		return
	}
	go f()
}

// await parks until it receives from a or b, or one of them is closed. b may be nil.
func (s *sched) await(a, b <-chan struct{}) {
	if s.model != nil {
		s.model.block(func() bool {
			select {
			case <-a:
			case <-b:
			default:
				return false
			}
			return true
		})
		return
	}
	if b == nil {
		<-a // cheaper than a select
		return
	}
	select {
	case <-a:
	case <-b:
	}
}
