package engine

import (
	"io"
	"runtime"
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
