package engine

import (
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// slowCalls is an endpoint whose calls take long, as in an emulated machine.
type slowCalls struct {
	fabric.Endpoint
	calls *atomic.Int32
}

func (s slowCalls) Exchange(ops []fabric.Op, done []fabric.Completion) (posted, reaped int, err error) {
	s.calls.Add(1)
	for start := time.Now(); time.Since(start) < 10*time.Microsecond; {
	}
	return s.Endpoint.Exchange(ops, done)
}

// TestPollsWhereCallsAreSlow: a goroutine polls a number of times, however long that
// takes, and waits count as short that are not much longer than this.
func TestPollsWhereCallsAreSlow(t *testing.T) {
	const spin = 200 * time.Microsecond
	var calls atomic.Int32
	l, err := newLinkOf(simfabric.Config{Seed: 1, Personality: simfabric.TCP()}, Config{Spin: spin}, func(e fabric.Endpoint) fabric.Endpoint {
		return slowCalls{e, &calls}
	})
	require.NoError(t, err)
	defer l.close(t)
	a, b := l.dial(t)
	// own calls f as the owner of the completion queue.
	own := func(f func()) {
		for !l.ea.acquire() {
			runtime.Gosched()
		}
		f()
		l.ea.release()
	}
	// A machine that has much else to do may have made the waits so far long, or the
	// other side may poll just then: both keep this one from it, as they should.
	polls := func() int32 {
		require.Eventually(t, func() bool { return spinners.Load() == 0 }, time.Minute, time.Millisecond)
		own(func() { l.ea.usual, l.ea.since = 0, time.Time{} })
		before, parks, ended := calls.Load(), l.ea.parks.Load(), make(chan error, 1)
		go func() {
			_, err := a.Read(make([]byte, 1))
			ended <- err
		}()
		require.Eventually(t, func() bool { return l.ea.parks.Load() > parks }, time.Minute, time.Millisecond)
		n := calls.Load() - before
		require.NoError(t, a.SetReadDeadline(time.Unix(1, 0)))
		require.ErrorIs(t, <-ended, os.ErrDeadlineExceeded)
		require.NoError(t, a.SetReadDeadline(time.Time{}))
		return n
	}
	var most int32
	for i := 0; i < 50 && most < spinPolls; i++ {
		most = max(most, polls())
	}
	assert.GreaterOrEqual(t, most, int32(spinPolls))
	own(func() {
		l.ea.usual = 3 * spin
		assert.True(t, l.ea.worthPolling())
	})
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}
