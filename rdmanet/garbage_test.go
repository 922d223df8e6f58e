package rdmanet_test

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// collected collects garbage until condition holds.
func collected(t *testing.T, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, func() bool {
		runtime.GC()
		return condition()
	}, 4*rdmatest.Patience, 10*time.Millisecond, what)
}

// TestDroppedConns: conns that become garbage without Close end on both sides, and are counted.
func TestDroppedConns(t *testing.T) {
	onEach(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		const n = 100
		var log lockedBuffer
		logger := slog.New(slog.NewTextHandler(&log, nil))
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: providers, Logger: logger})
		d := &rdmanet.Dialer{Transport: tr, Providers: providers, Logger: logger}
		var ended atomic.Int64
		kept := make([]net.Addr, n) // which must not keep the conns
		for i := range n {
			c, s := rdmatest.Meet(t, d, l)
			_, err := c.Write([]byte("last words"))
			require.NoError(t, err)
			kept[i] = c.LocalAddr()
			go func() {
				b, err := io.ReadAll(s)
				assert.NoError(t, err)
				assert.Equal(t, "last words", string(b))
				ended.Add(1)
			}() // and drops s, too
		}
		collected(t, func() bool { return ended.Load() == int64(n) }, "their peers read EOF")
		collected(t, func() bool { return tr.Stats().Conns == 0 }, "all have ended")
		assert.EqualValues(t, 2*n, tr.Stats().Dropped)
		rdmatest.Eventually(t, func() bool { return strings.Contains(log.String(), "level=WARN") }, "it is told")
		assert.Contains(t, log.String(), "conn dropped without Close")
		for _, a := range kept {
			info, ok := rdmanet.InfoOf(a)
			require.True(t, ok)
			require.True(t, info.Dialed)
		}
	})
}

// TestClosedConnsAreNotDropped: garbage that was closed is nobody's bug, and what is known of it
// goes with its addresses.
func TestClosedConnsAreNotDropped(t *testing.T) {
	onPersonalities(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: providers})
		before := rdmanet.Records()
		var gone atomic.Int64
		for range 10 {
			c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr, Providers: providers}, l)
			for _, c := range []*rdmanet.Conn{c, s} {
				runtime.AddCleanup(c, func(int) { gone.Add(1) }, 0)
			}
			rdmatest.CloseAll(t, c, s)
		}
		collected(t, func() bool { return gone.Load() == 20 && rdmanet.Records() <= before }, "nothing keeps them")
		assert.Zero(t, tr.Stats().Dropped)
	})
}

// TestUsedConnsAreNotDropped: a conn is not garbage as long as one of its methods runs.
func TestUsedConnsAreNotDropped(t *testing.T) {
	onPersonalities(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: providers})
		addr, big := l.Addr().String(), make([]byte, 8<<20)
		c, calls, accept := func() (*rdmanet.Conn, []*rdmatest.Call, *rdmatest.Call) {
			c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr, Providers: providers}, l)
			read := func() (int, error) { return s.Read(make([]byte, 1)) }
			write := func() (int, error) { return s.Write(big) }
			accept := func() (int, error) { _, err := l.Accept(); return 0, err }
			return c, []*rdmatest.Call{rdmatest.Begin(read), rdmatest.Begin(write)}, rdmatest.Begin(accept)
		}()
		for range 10 {
			runtime.GC()
			time.Sleep(time.Millisecond)
		}
		assert.Zero(t, tr.Stats().Dropped)
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
		_, err = io.ReadFull(c, big)
		require.NoError(t, err)
		for _, call := range calls {
			call.End(t, "a call", nil)
			require.NoError(t, call.Err)
		}
		other, err := (&rdmanet.Dialer{Transport: tr, Providers: providers}).Dial("rdma", addr)
		require.NoError(t, err)
		accept.End(t, "Accept")
		require.NoError(t, accept.Err)
		_ = other.(*rdmanet.Conn).SetLinger(0)
		_ = c.SetLinger(0)
		rdmatest.CloseAll(t, c, other)
		collected(t, func() bool { return tr.Stats().Conns == 0 }, "now they are")
	})
}

// TestDroppedListener: a listener that becomes garbage without Close is closed, and leaves no goroutine.
func TestDroppedListener(t *testing.T) {
	onEach(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		var log lockedBuffer
		address := func() string {
			lc := rdmanet.ListenConfig{Transport: tr, Providers: providers, Logger: slog.New(slog.NewTextHandler(&log, nil))}
			l, err := lc.Listen(t.Context(), "rdma", "127.0.0.1:0")
			require.NoError(t, err)
			rdmatest.Eventually(t, func() bool { return strings.Contains(rdmatest.Stacks(), "rdmanet.(*listener)") }, "it accepts")
			return l.Addr().String()
		}()
		collected(t, func() bool { return tr.Stats().Dropped == 1 }, "it is found")
		rdmatest.Eventually(t, func() bool {
			c, err := net.Dial("tcp", address)
			if err == nil {
				c.Close()
			}
			return errors.Is(err, syscall.ECONNREFUSED)
		}, "it is closed")
		rdmatest.Eventually(t, func() bool { return strings.Contains(log.String(), "listener dropped without Close") }, "it is told")
		rdmatest.Eventually(t, func() bool { return !strings.Contains(rdmatest.Stacks(), "rdmanet.(*listener)") }, "no goroutine is left")
	})
}
