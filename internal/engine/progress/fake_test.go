package progress

import (
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
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
	bell, watcher simfabric.Bell
	watched       atomic.Bool
	broken        error
}

func newFD() *fakeFD { return &fakeFD{bell: simfabric.NewBell(), watcher: simfabric.NewBell()} }

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

// newDoorbell is a doorbell without a peer.
func newDoorbell() *Doorbell {
	return &Doorbell{
		Own: new(atomic.Uint32), Peer: new(atomic.Uint32), Ring: func(bool) {},
		Bell: simfabric.NewBell(), Watcher: simfabric.NewBell(),
	}
}

// arrived rings, as the peer does.
func (b *Doorbell) arrived() {
	switch b.Own.Swap(doorbellAwake) {
	case doorbellAsleep:
		b.Watcher.Wake()
	case doorbellLed:
		b.Bell.Wake()
	}
}
