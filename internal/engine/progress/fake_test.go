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

// fakeFD is a wait object. Each bell holds one ring.
type fakeFD struct {
	bell, watcher fakeBell
	watched       atomic.Bool
	broken        error
}

func newFD() *fakeFD { return &fakeFD{bell: make(fakeBell, 1), watcher: make(fakeBell, 1)} }

func (f *fakeFD) TryWait() (bool, error) { return true, f.broken }
func (f *fakeFD) Bell() Bell             { return f.bell }
func (f *fakeFD) Watcher() Bell          { return f.watcher }
func (f *fakeFD) Watch(on bool) bool     { f.watched.Store(on); return on }

func (f *fakeFD) arrived() {
	f.bell.Wake()
	if f.watched.Load() {
		f.watcher.Wake()
	}
}

func put(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// fakeBell is a bell that holds one ring.
type fakeBell chan struct{}

func (b fakeBell) Sleep(ready func() bool) error {
	for !ready() {
		<-b
	}
	return nil
}

func (b fakeBell) Wake() { put(b) }

func newBells() *Doorbell {
	b := newDoorbell()
	b.Bell = make(fakeBell, 1)
	return b
}

// newDoorbell is a doorbell that nobody hears.
func newDoorbell() *Doorbell {
	return &Doorbell{Own: new(atomic.Uint32), Peer: new(atomic.Uint32), Ring: func(bool) {}}
}
