package engine

import (
	"os"
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
	for range 3 {
		// While another goroutine of the process polls, this one may not.
		require.Eventually(t, func() bool { return spinners.Load() == 0 }, time.Minute, time.Millisecond)
		before, parks, ended := calls.Load(), l.ea.parks.Load(), make(chan error, 1)
		go func() {
			_, err := a.Read(make([]byte, 1))
			ended <- err
		}()
		require.Eventually(t, func() bool { return l.ea.parks.Load() > parks }, time.Minute, time.Millisecond)
		assert.GreaterOrEqual(t, calls.Load()-before, int32(spinPolls))
		require.NoError(t, a.SetReadDeadline(time.Unix(1, 0)))
		require.ErrorIs(t, <-ended, os.ErrDeadlineExceeded)
		require.NoError(t, a.SetReadDeadline(time.Time{}))
	}
	require.True(t, l.ea.acquire())
	l.ea.usual = 3 * spin
	assert.True(t, l.ea.worthPolling())
	l.ea.release()
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}
