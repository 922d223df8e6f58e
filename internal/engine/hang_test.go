package engine

import (
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// processTime returns the processor time that the process has used.
func processTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestWaitersSleepWhileACallHangs: goroutines that wait for an endpoint use no processor while one
// of its calls hangs. The simulated fabric's calls use none either while they hang.
func TestWaitersSleepWhileACallHangs(t *testing.T) {
	for name, procs := range map[string]int{"one core": 1, "two cores": 2} {
		for what, spin := range map[string]time.Duration{"polling": 0, "parking": -1} {
			t.Run(name+"/"+what, func(t *testing.T) {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
				l := newLink(t, simfabric.Config{Personality: simfabric.Shm()}, Config{Spin: spin})
				var wg sync.WaitGroup
				conns, others := make([]*Conn, 8), make([]*Conn, 8)
				for i := range conns {
					conns[i], others[i] = l.dial(t)
				}
				l.net.Hang(l.ea.fab)
				for _, c := range conns {
					wg.Go(func() {
						_, err := c.Read(make([]byte, 1))
						assert.ErrorIs(t, err, syscall.ECONNRESET)
					})
				}
				time.Sleep(100 * time.Millisecond) // by now all wait or hang
				defer debug.SetGCPercent(debug.SetGCPercent(-1))
				debug.FreeOSMemory() // garbage of earlier tests is collected now, and not while we watch
				const watched = time.Second
				before := processTime(t)
				time.Sleep(watched)
				assert.Less(t, processTime(t)-before, watched/20)
				call(t, func() error { l.a.Lost(io.ErrUnexpectedEOF); return nil }, nil)
				wg.Wait()
				resetConns(t, slices.Concat(conns, others)...)
				abandoned(t, l)
			})
		}
	}
}

// TestEndingCallsDoNotHang: a call that ends something ends, though what it sends hangs in the library.
func TestEndingCallsDoNotHang(t *testing.T) {
	for name, f := range map[string]func(c *Conn) error{
		"Close": (*Conn).Close, "CloseWrite": (*Conn).CloseWrite,
		"CloseRead": (*Conn).CloseRead,
		"reset":     func(c *Conn) error { _ = c.SetLinger(0); return c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLink(t, simfabric.Config{Personality: simfabric.Shm()}, Config{Spin: -1})
			a, b := l.dial(t)
			for range 60 { // so that CloseRead has credit to send
				_, err := b.Write(make([]byte, 1000))
				require.NoError(t, err)
			}
			time.Sleep(50 * time.Millisecond)
			l.net.Hang(l.ea.fab)
			done := make(chan error, 1)
			start := time.Now()
			go func() { done <- f(a) }()
			select {
			case err := <-done:
				t.Log(time.Since(start), err)
			case <-time.After(3 * time.Second):
				t.Error("still waits after 3 s")
			}
			l.a.Lost(io.ErrUnexpectedEOF)
			l.b.Lost(io.ErrUnexpectedEOF)
			_, _ = a.Close(), b.Close()
		})
	}
}
