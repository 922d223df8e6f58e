package progress

import (
	"sync/atomic"
	"time"
)

// fakeQueue has completions once somebody has put some there.
type fakeQueue struct {
	arrived atomic.Int32
	polls   atomic.Int32
	slow    time.Duration // what a poll takes
	reaped  func()        // is called when a poll finds something
}

func (q *fakeQueue) Poll(bool) Found {
	q.polls.Add(1)
	for start := time.Now(); time.Since(start) < q.slow; {
	}
	n := int(q.arrived.Swap(0))
	if n > 0 && q.reaped != nil {
		q.reaped()
	}
	return Found{Completions: n, Moved: uint64(n)}
}

// fakeFD is a wait fd: arrivals send events. Both channels hold one token.
type fakeFD struct {
	event, woken chan struct{}
	wakes        atomic.Int32
	broken       error
}

func newFD() *fakeFD { return &fakeFD{event: make(chan struct{}, 1), woken: make(chan struct{}, 1)} }

func (f *fakeFD) Wait(ready func() bool, _ time.Duration) error {
	for !ready() {
		if f.broken != nil {
			return f.broken
		}
		select {
		case <-f.woken:
			return nil
		case <-f.event:
		}
	}
	return nil
}

func (f *fakeFD) Wake() {
	f.wakes.Add(1)
	put(f.woken)
}

func put(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// newDoorbell is a doorbell that nobody hears.
func newDoorbell() *Doorbell {
	return &Doorbell{Own: new(atomic.Uint32), Peer: new(atomic.Uint32), Ring: func() {}}
}
