package engine

import (
	"errors"
	"io"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// hanging makes calls into the fabric hang on one side of a link, while one goroutine reads from a
// conn of that side and another writes: one of them holds the endpoint's lock, or owns the queue.
// It returns the link, the conn, and what the two calls end with.
func hanging(t *testing.T) (l *link, a *Conn, read, written <-chan error) {
	l = newLink(t, simfabric.Config{Personality: simfabric.Shm()}, Config{})
	a, _ = l.dial(t)
	l.net.Hang(l.ea.fab)
	read = begin(func() error { return readN(a, 1) })
	written = begin(func() error {
		for {
			if err := writeN(a, 100); err != nil {
				return err
			}
		}
	})
	time.Sleep(20 * time.Millisecond) // whoever gets there first: both must end
	return l, a, read, written
}

// soon is how long a call that promises to end may take.
const soon = 2 * time.Second

// endsSoon checks that a call ends soon, with one of the errors.
func endsSoon(t *testing.T, ended <-chan error, want ...error) {
	t.Helper()
	select {
	case err := <-ended:
		is := func(w error) bool { return errors.Is(err, w) }
		assert.True(t, slices.ContainsFunc(want, is), "ended with another error: %v, want one of %v", err, want)
	case <-time.After(soon):
		t.Fatal("the call hangs")
	}
}

// call runs f, which must end soon.
func call(t *testing.T, f func() error, want ...error) {
	t.Helper()
	endsSoon(t, begin(f), want...)
}

// abandoned closes a link one side of which was abandoned.
func abandoned(t *testing.T, l *link) {
	t.Helper()
	assert.Equal(t, uint64(1), l.ea.Stats().Abandoned)
	assert.Zero(t, l.eb.Stats().Abandoned)
	call(t, func() error { l.b.Lost(io.ErrUnexpectedEOF); return nil }, nil)
	call(t, l.ea.Close, nil)
	call(t, l.eb.Close, nil)
	assert.Zero(t, l.ea.core.cfg.Budget.Stats().Used, "memory budget")
}

func TestHangEndsWithThePeer(t *testing.T) {
	l, a, read, written := hanging(t)
	call(t, func() error { l.a.Lost(io.ErrUnexpectedEOF); return nil }, nil)
	endsSoon(t, read, syscall.ECONNRESET)
	endsSoon(t, written, syscall.ECONNRESET)
	assert.ErrorIs(t, writeN(a, 1), syscall.ECONNRESET)
	call(t, a.Close, nil)
	abandoned(t, l)
}

func TestHangEndsWithTheDeadline(t *testing.T) {
	for name, deadline := range map[string]time.Duration{"to come": 50 * time.Millisecond, "past": -1} {
		t.Run(name, func(t *testing.T) {
			l, a, read, written := hanging(t)
			call(t, func() error { return a.SetReadDeadline(time.Now().Add(deadline)) }, nil)
			endsSoon(t, read, os.ErrDeadlineExceeded, syscall.ECONNRESET)
			endsSoon(t, written, syscall.ECONNRESET)
			call(t, a.Close, nil)
			abandoned(t, l)
		})
	}
}

func TestHangEndsWithClose(t *testing.T) {
	l, a, read, written := hanging(t)
	call(t, func() error {
		a.e.lock() // which a call that hangs may hold
		a.linger = -1
		a.e.mu.Unlock()
		return a.Close()
	}, nil)
	endsSoon(t, read, os.ErrClosed, syscall.ECONNRESET, errClosed)
	endsSoon(t, written, syscall.ECONNRESET, errClosed)
	abandoned(t, l)
}

// TestHangInClose: Close ends even if it is the first call into the fabric since the fabric hangs.
func TestHangInClose(t *testing.T) {
	for _, linger := range []int{0, 1} {
		l := newLink(t, simfabric.Config{Personality: simfabric.Shm()}, Config{})
		a, _ := l.dial(t)
		require.NoError(t, a.SetLinger(linger))
		time.Sleep(50 * time.Millisecond) // nobody polls any more
		l.net.Hang(l.ea.fab)
		select {
		case <-begin(a.Close): // the peer may have everything or not: nobody can tell
		case <-time.After(time.Duration(linger)*time.Second + soon):
			t.Fatal("Close hangs")
		}
		abandoned(t, l)
	}
}

// TestRescueSparesTheHealthy: no call hangs, so nothing is abandoned, however often somebody looks.
func TestRescueSparesTheHealthy(t *testing.T) {
	l, a, b := newConns(t, simfabric.Config{Personality: simfabric.Shm()}, Config{})
	ended := begin(func() error { return echo(b, 64) })
	buf := make([]byte, 64)
	for range 200 {
		require.NoError(t, roundTrip(a, buf))
		require.False(t, l.ea.poller.Rescue())
		require.NoError(t, a.SetReadDeadline(time.Now().Add(-1)))
		require.NoError(t, a.SetReadDeadline(time.Time{}))
	}
	require.NoError(t, a.Close())
	require.NoError(t, <-ended)
	require.NoError(t, b.Close())
}
