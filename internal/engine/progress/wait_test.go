package progress

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// neverSafe is a wait object that it is never safe to sleep on.
type neverSafe struct {
	*fakeFD
	tries atomic.Int32
}

func (f *neverSafe) TryWait() (bool, error) {
	f.tries.Add(1)
	return false, nil
}

// TestNeverSafe: with a provider for which it is never safe to sleep, neither the leader nor the watcher keeps
// a processor busy, and both end when they are told to.
func TestNeverSafe(t *testing.T) {
	const limit = 100 * time.Millisecond
	for name, leads := range map[string]bool{"leader": true, "watcher": false} {
		t.Run(name, func(t *testing.T) {
			fd := &neverSafe{fakeFD: newFD()}
			p := New(Config{Queue: new(fakeQueue), Waiter: fd, Spin: -1})
			p.Start()
			w := NewWaiter()
			w.Prepare()
			ended := make(chan struct{})
			if leads {
				go func() { defer close(ended); p.Wait(&w, "test") }()
			} else {
				close(ended)
				require.True(t, p.Acquire())
				p.arm()
			}
			require.Eventually(t, func() bool { return fd.tries.Load() > unsafeYields }, time.Minute, time.Millisecond)
			before, start := fd.tries.Load(), time.Now()
			time.Sleep(limit)
			most := 10 + int(time.Since(start)/maxPause) // it pauses shortly a few times, and from then on for maxPause
			assert.LessOrEqual(t, int(fd.tries.Load()-before), 2*most)
			w.Signal()
			<-ended
			p.Close()
		})
	}
}

// countedFD counts the looks of the watcher.
type countedFD struct {
	*fakeFD
	looks *atomic.Int32
}

func (f countedFD) Watcher() Bell { return f }
func (f countedFD) Wake()         { f.watcher.Wake() }
func (f countedFD) Sleep(ready func() bool) error {
	return f.watcher.Sleep(func() bool {
		f.looks.Add(1)
		return ready()
	})
}

// TestLeaderAlone: what arrives for the leader wakes nobody else, and what arrives while nobody leads wakes the
// watcher, over a wait object.
func TestLeaderAlone(t *testing.T) {
	fd := countedFD{newFD(), new(atomic.Int32)}
	var w Waiter
	q := &fakeQueue{reaped: func() { w.Signal() }}
	p := New(Config{Queue: q, Waiter: fd, Spin: -1})
	w = NewWaiter()
	p.Start()
	defer p.Close()
	require.Eventually(t, func() bool { return fd.looks.Load() == 1 }, time.Minute, time.Millisecond) // the first one
	for range 100 {
		w.Prepare()
		ended := make(chan struct{})
		go func() { defer close(ended); p.Wait(&w, "test") }()
		require.Eventually(t, func() bool { return w.state.bell.Load() != nil && !fd.watched.Load() }, time.Minute, 10*time.Microsecond)
		q.arrived.Store(1)
		fd.arrived()
		<-ended
	}
	assert.Less(t, fd.looks.Load(), int32(50), "the watcher is woken, too") // now and then the timer polls for the leader
	q.arrived.Store(1)
	fd.arrived()
	require.Eventually(t, func() bool { return q.arrived.Load() == 0 }, time.Minute, time.Millisecond)
}

// TestTakesTheLead: a goroutine that waits does not wait for the watcher, which only polls for others.
func TestTakesTheLead(t *testing.T) {
	for name, waiter := range map[string]fabric.Waiter{"wait object": newFD(), "doorbell": nil} {
		t.Run(name, func(t *testing.T) {
			p := New(Config{Queue: new(fakeQueue), Waiter: waiter, Spin: time.Hour})
			if waiter == nil {
				p.SetDoorbell(newDoorbell())
			}
			p.idle = time.Hour
			p.Start()
			defer p.Close()
			p.want(&p.watched.waits)
			require.Eventually(t, func() bool { return p.leader.Load() == &p.watched.waits }, time.Minute, time.Millisecond)
			w := NewWaiter()
			w.Prepare()
			ended := make(chan struct{})
			go func() { defer close(ended); p.Wait(&w, "test") }()
			polls := func() bool { return p.leader.Load() == &w && p.spins.n.Load() == 1 }
			assert.Eventually(t, polls, 10*time.Second, time.Millisecond)
			w.Signal()
			<-ended
		})
	}
}
