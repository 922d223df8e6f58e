package engine

import (
	"runtime"
	"time"
)

// A provider's call can hang when the peer dies, or is stopped: see
// fabric.Rescuer. The goroutine that made it may be the owner of the queue, or
// hold the endpoint's lock. So whoever learns that the peer is gone, and every
// call that promises to end (deadlines, Close), sees to it that such a call does
// not stand in its way: the endpoint is abandoned then, and its conns are reset.
// While the peer is merely stopped and nothing has a deadline, all wait for it.

// rescueEvery is how often calls that hang are looked for, while somebody waits.
const rescueEvery = 10 * time.Millisecond

// rescue gets goroutines out of calls that hang.
func (e *Endpoint) rescue() (abandoned bool) {
	return e.rescuer != nil && e.rescuer.Rescue()
}

// watch rescues until the caller calls stop, once.
func (e *Endpoint) watch() (stop func()) { return e.watchAfter(0) }

// watchAfter is watch for a call that may take so long.
func (e *Endpoint) watchAfter(d time.Duration) (stop func()) {
	return e.watchFrom(func(f func()) func() bool { return time.AfterFunc(d, f).Stop })
}

// watchFrom is watch from when begin calls f; cancel keeps it from that.
func (e *Endpoint) watchFrom(begin func(f func()) (cancel func() bool)) (stop func()) {
	if e.rescuer == nil {
		return func() {}
	}
	done := make(chan struct{})
	cancel := begin(func() {
		for !e.rescue() {
			select {
			case <-done:
				return
			case <-time.After(rescueEvery):
			}
		}
	})
	return func() {
		cancel()
		close(done)
	}
}

// rescueSoon is for the owner of the queue, if there is one: it may be who has just
// been told to end. The timer is nil if there is nothing to do.
func (e *Endpoint) rescueSoon() *time.Timer {
	if e.rescuer == nil || e.state.Load() != owned {
		return nil
	}
	return time.AfterFunc(rescueEvery, func() { e.rescue() })
}

// lock takes the endpoint's lock for a call that must not wait for one that
// hangs.
func (e *Endpoint) lock() {
	if e.rescuer == nil {
		e.mu.Lock()
		return
	}
	for range 8 {
		if e.mu.TryLock() {
			return
		}
		runtime.Gosched()
	}
	defer e.watch()()
	e.mu.Lock()
}

// enterWatched is enter for a call that must not wait for one that hangs.
func (e *Endpoint) enterWatched() {
	e.lock()
	e.core.at = time.Time{}
}

// expire ends a wait from outside: f, under the lock, signals it. The goroutine
// that waits may be in a call that hangs.
func (e *Endpoint) expire(f func()) {
	e.lock()
	f()
	e.mu.Unlock()
	if e.state.Load() == owned {
		e.rescue()
	}
}

// retire makes the caller the owner of the queue for good: nobody polls any more,
// and nobody is to wait for anything.
func (e *Endpoint) retire() {
	e.retired.Do(func() {
		e.over.Store(true)
		for !e.acquire() {
			time.Sleep(50 * time.Microsecond)
		}
	})
}
