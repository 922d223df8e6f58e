package simfabric

import (
	"sync/atomic"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// waiter is an endpoint's wait object.
type waiter struct {
	e             *endpoint
	bell, watcher Bell
	watched       atomic.Bool
}

// Bell is a fabric.Bell that holds one ring, so that nothing is missed that comes between a look and the sleep.
type Bell chan struct{}

// NewBell returns a Bell that has not rung.
func NewBell() Bell { return make(Bell, 1) }

func newWaiter(e *endpoint) *waiter {
	return &waiter{e: e, bell: NewBell(), watcher: NewBell()}
}

// Wake implements fabric.Bell.
func (b Bell) Wake() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// Sleep implements fabric.Bell.
func (b Bell) Sleep(ready func() bool) error {
	for !ready() {
		<-b
	}
	return nil
}

// signal says that looking again is worth it.
func (w *waiter) signal() {
	w.bell.Wake()
	if w.watched.Load() {
		w.watcher.Wake()
	}
}

// Bell implements fabric.Waiter.
func (w *waiter) Bell() fabric.Bell { return w.bell }

// Watcher implements fabric.Waiter.
func (w *waiter) Watcher() fabric.Bell { return w.watcher }

// Watch implements fabric.Waiter.
func (w *waiter) Watch(on bool) (ready bool) {
	w.watched.Store(on)
	return on && w.mustPoll()
}

// TryWait implements fabric.Waiter.
func (w *waiter) TryWait() (safe bool, err error) {
	if err = w.fault(); err != nil {
		return false, err
	}
	return !w.mustPoll(), nil
}

func (w *waiter) fault() error {
	w.e.net.mu.Lock()
	defer w.e.net.mu.Unlock()
	return w.e.fault(CallWait)
}

// mustPoll reports, as fi_trywait(3) does, that it is not safe to sleep: there is something to
// reap, or something on the wire that moves only if somebody polls.
func (w *waiter) mustPoll() bool {
	n := w.e.net
	n.mu.Lock()
	defer n.mu.Unlock()
	return w.e.runs() && (len(w.e.queue) > 0 || n.moving(w.e))
}
