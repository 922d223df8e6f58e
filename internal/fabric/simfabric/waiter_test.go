package simfabric

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// Two goroutines that do nothing but Wait play ping-pong. No event is missed,
// whatever is delayed or refused.
func TestWaiterPingPong(t *testing.T) {
	const rounds = 100
	for _, cfg := range []Config{
		{},
		{Seed: 1, Delay: 9, AgainRate: 0.3, CompletionReorder: true},
		{Seed: 2, Delay: 9, Personality: Personality{TxDepth: 1, RxDepth: 1}},
		{Seed: 3, Delay: 3, AgainRate: 0.3, Personality: TCP()},
	} {
		synctest.Test(t, func(t *testing.T) {
			_, a, b := pair(t, cfg)
			var wg sync.WaitGroup
			wg.Go(func() { bounce(a, rounds, true) })
			wg.Go(func() { bounce(b, rounds, false) })
			wg.Wait()
		})
	}
}

// sleep sleeps until ready returns true.
func (s *side) sleep(ready func() bool) error {
	w := s.Waiter()
	var failed error
	err := w.Bell().Sleep(func() bool {
		for !ready() {
			safe, err := w.TryWait()
			if failed = err; safe || err != nil {
				return err != nil
			}
			runtime.Gosched()
		}
		return true
	})
	return errors.Join(err, failed)
}

// sleepFor is sleep, with a limit.
func (s *side) sleepFor(d time.Duration, ready func() bool) error {
	var over atomic.Bool
	time.AfterFunc(d, func() {
		over.Store(true)
		s.Waiter().Bell().Wake()
	})
	return s.sleep(func() bool { return over.Load() || ready() })
}

// bounce receives rounds messages and sends as many, in turn.
func bounce(s *side, rounds int, serve bool) {
	pending := []fabric.Op{s.op(fabric.Recv, 0, 0, 8)}
	if serve {
		pending = append(pending, s.op(fabric.Send, 0, 64, 8))
	}
	received, sent := 0, 0
	done := make([]fabric.Completion, 4)
	exchange := func() (progress bool) {
		posted, reaped, err := s.Exchange(pending, done)
		assert.NoError(s.t, err)
		pending = pending[posted:]
		for _, c := range done[:reaped] {
			assert.NoError(s.t, c.Err)
			if c.Kind == fabric.Send {
				sent++
				continue
			}
			received++
			if received < rounds {
				pending = append(pending, s.op(fabric.Recv, 0, 0, 8))
			}
			if !serve || received < rounds {
				pending = append(pending, s.op(fabric.Send, 0, 64, 8))
			}
		}
		return posted+reaped > 0
	}
	ready := func() bool {
		for exchange() {
		}
		return received == rounds && sent == rounds
	}
	start := time.Now()
	assert.NoError(s.t, s.sleep(ready))
	assert.Zero(s.t, time.Since(start), "an event was missed")
}

// TestWaiterWakes: Wake ends Sleep, also if it comes first. The watcher is woken while Watch is on.
func TestWaiterWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b := pair(t, Config{})
		calls := 0
		never := func() bool { calls++; return false }
		start := time.Now()
		require.NoError(t, a.sleepFor(time.Second, never))
		assert.Equal(t, time.Second, time.Since(start))
		assert.Equal(t, 1, calls)

		// A send that waits for a receive does not keep the sleeper polling.
		a.post(a.op(fabric.Send, 0, 0, 8))
		calls = 0
		require.NoError(t, a.sleepFor(time.Second, func() bool { a.poll(1); return never() }))
		assert.Less(t, calls, 4)
		b.poll(1)

		w := b.Waiter()
		rings, over := 0, false
		go func() { _ = w.Watcher().Sleep(func() bool { rings++; return over }) }()
		for _, on := range []bool{false, true, false, true} {
			w.Watch(on)
			synctest.Wait()
			before := rings
			b.post(b.op(fabric.Recv, 0, 0, 8))
			a.post(a.op(fabric.Send, 0, 0, 8))
			synctest.Wait()
			assert.Equal(t, on, rings > before)
		}
		over = true
		w.Watcher().Wake()
	})
}
