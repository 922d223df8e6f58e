package engine

import (
	"errors"
	"io"
	"os"
	"sync"
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
	r, w := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := a.Read(make([]byte, 1))
		r <- err
	}()
	go func() {
		for {
			if _, err := a.Write(make([]byte, 100)); err != nil {
				w <- err
				return
			}
		}
	}()
	time.Sleep(20 * time.Millisecond) // whoever gets there first: both must end
	return l, a, r, w
}

// soon is how long a call that promises to end may take.
const soon = 2 * time.Second

func endsSoon(t *testing.T, ended <-chan error, want ...error) {
	t.Helper()
	select {
	case err := <-ended:
		for _, w := range want {
			if errors.Is(err, w) {
				return
			}
		}
		assert.Fail(t, "ended with another error", "%v, want one of %v", err, want)
	case <-time.After(soon):
		t.Fatal("the call hangs")
	}
}

// call runs f, which must end soon.
func call(t *testing.T, f func() error, want ...error) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	endsSoon(t, ended, want...)
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
	_, err := a.Write(make([]byte, 1))
	assert.ErrorIs(t, err, syscall.ECONNRESET)
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
	require.NoError(t, closeSoon(t, a))
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
		ended := make(chan struct{})
		go func() {
			_ = a.Close() // the peer may have everything or not: nobody can tell
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(time.Duration(linger)*time.Second + soon):
			t.Fatal("Close hangs")
		}
		abandoned(t, l)
	}
}

// closeSoon resets a conn whose lock may be held by a call that hangs.
func closeSoon(t *testing.T, c *Conn) (err error) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		c.e.lock()
		c.linger = -1
		c.e.mu.Unlock()
		err = c.Close()
	})
	call(t, func() error { wg.Wait(); return nil }, nil)
	return err
}

// TestRescueSparesTheHealthy: no call hangs, so nothing is abandoned, however often somebody looks.
func TestRescueSparesTheHealthy(t *testing.T) {
	l, a, b := newConns(t, simfabric.Config{Personality: simfabric.Shm()}, Config{})
	ended := make(chan error, 1)
	go func() { ended <- echo(b, 64) }()
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
