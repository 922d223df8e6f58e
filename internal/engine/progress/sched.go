package progress

import "runtime"

// sched is how goroutines wait for each other. The model test has one of its own, which
// runs them as coroutines on one thread.
type sched struct {
	model scheduler // nil otherwise
}

type scheduler interface {
	step()                   // others may run here
	block(until func() bool) // others run until it is so
	spawn(f func())
}

// step marks where others may come between two looks at what is shared.
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

// yieldThread is for goroutines that poll.
func (s *sched) yieldThread() {
	if s.model != nil {
		s.model.step()
		return
	}
	yieldThread()
}

func (s *sched) spawn(f func()) {
	if s.model != nil {
		s.model.spawn(f)
		return
	}
	go f()
}

// await parks until something comes over a or b.
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
		<-a // which takes less than a select
		return
	}
	select {
	case <-a:
	case <-b:
	}
}
