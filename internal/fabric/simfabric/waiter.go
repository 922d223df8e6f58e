package simfabric

import (
	"runtime"
	"time"
)

// waiter is an endpoint's wait object. Each channel holds one token, so that nothing is missed that
// comes between a look and the sleep.
type waiter struct {
	e     *endpoint
	event chan struct{}
	woken chan struct{}
	timer *time.Timer // of the one Wait that is going on
}

func newWaiter(e *endpoint) *waiter {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &waiter{e: e, event: make(chan struct{}, 1), woken: make(chan struct{}, 1), timer: t}
}

func put(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// signal says that looking again is worth it.
func (w *waiter) signal() { put(w.event) }

func (w *waiter) Wake() { put(w.woken) }

func (w *waiter) Wait(ready func() bool, limit time.Duration) error {
	if err := w.fault(); err != nil {
		return err
	}
	var expired <-chan time.Time
	if limit > 0 {
		w.timer.Reset(limit)
		defer w.timer.Stop()
		expired = w.timer.C
	}
	for !ready() {
		if w.mustPoll() {
			put(w.event) // ends the select below at once, though it may pick another case
			runtime.Gosched()
		}
		select {
		case <-w.woken:
			return nil
		case <-expired:
			return nil
		case <-w.event:
		}
	}
	return nil
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
