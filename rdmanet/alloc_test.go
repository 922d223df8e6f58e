//go:build !race && !asan

package rdmanet_test

import (
	"io"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestNoAllocations: while two warm conns Read and Write, nothing in the process
// allocates. To see where allocations come from, run it with -memprofile and
// -memprofilerate=1. The race detector allocates, too, so this is not for -race.
func TestNoAllocations(t *testing.T) {
	onProviders(t, func(t *testing.T, pipe pipeFunc) {
		a, b := pipe() // the first conn has an endpoint opened for the next peer: wait until that is over
		rdmatest.CloseAll(t, a, b)
		time.Sleep(3 * rdmanet.SpareDelay)
		t.Run("late reads", func(t *testing.T) { allocLateReads(t, pipe) })
		t.Run("round trip of 64 B", func(t *testing.T) { allocRoundTrip(t, pipe, 4000, 0) })
		t.Run("round trip of 64 B, parked", func(t *testing.T) {
			allocRoundTrip(t, pipe, 1000, 200*time.Microsecond)
		})
		t.Run("64 KiB one way", func(t *testing.T) { allocOneWay(t, pipe) })
	})
}

// allocRoundTrip pauses before each message. If the pause is longer than any wait
// polls, the other end has parked by then.
func allocRoundTrip(t *testing.T, pipe pipeFunc, rounds int, pause time.Duration) {
	a, b := pipe()
	ended := make(chan error, 1)
	go func() { ended <- echoAll(b, 64) }()
	buf := make([]byte, 64)
	noAllocations(t, rounds, func() error {
		time.Sleep(pause)
		if _, err := a.Write(buf); err != nil {
			return err
		}
		_, err := io.ReadFull(a, buf)
		return err
	})
	require.NoError(t, a.CloseWrite())
	require.ErrorIs(t, <-ended, io.EOF)
	rdmatest.CloseAll(t, a, b)
}

// allocLateReads reads each message in two halves, so that the second has waited
// in the reassembly ring.
func allocLateReads(t *testing.T, pipe pipeFunc) {
	a, b := pipe()
	buf := make([]byte, 128)
	noAllocations(t, 4000, func() error {
		if _, err := a.Write(buf); err != nil {
			return err
		}
		for _, half := range [][]byte{buf[:64], buf[64:]} {
			if _, err := io.ReadFull(b, half); err != nil {
				return err
			}
		}
		return nil
	})
	rdmatest.CloseAll(t, a, b)
}

func allocOneWay(t *testing.T, pipe pipeFunc) {
	a, b := pipe()
	ended := make(chan error, 1)
	go func() {
		_, err := io.CopyBuffer(rdmatest.OnlyWriter{Writer: io.Discard}, rdmatest.OnlyReader{Reader: b}, make([]byte, 64<<10))
		ended <- err
	}()
	buf := make([]byte, 64<<10)
	noAllocations(t, 4000, func() error {
		_, err := a.Write(buf)
		return err
	})
	require.Positive(t, a.Info().LargeSent)
	require.NoError(t, a.CloseWrite())
	require.NoError(t, <-ended)
	rdmatest.CloseAll(t, a, b)
}

// noAllocations runs op until everything has grown to its size, then fails the test
// if further rounds allocate. It tolerates a few objects, however many rounds there
// are, since a queue can still grow.
func noAllocations(t *testing.T, rounds int, op func() error) {
	t.Helper()
	// A garbage collection would empty the runtime's own caches.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	fillRuntimeCaches()
	var before, after runtime.MemStats
	for i := range rounds/2 + rounds {
		if i == rounds/2 {
			runtime.ReadMemStats(&before)
		}
		if err := op(); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	n := after.Mallocs - before.Mallocs
	t.Logf("%d objects in %d operations", n, rounds)
	const few = 40
	assert.LessOrEqual(t, n, uint64(few), "objects allocated in %d operations", rounds)
}

// fillRuntimeCaches leaves the runtime with more descriptors of goroutines and of
// their waits than each processor's cache holds (128). A goroutine that waits on
// one processor and continues on another moves a descriptor from the first cache to
// the second. Until both caches, and the one that they share, are full, the runtime
// therefore allocates some now and then.
func fillRuntimeCaches() {
	var begun, ended sync.WaitGroup
	open := make(chan struct{})
	for range 256 * runtime.GOMAXPROCS(0) {
		begun.Add(1)
		ended.Go(func() {
			begun.Done()
			<-open
		})
	}
	begun.Wait()
	close(open)
	ended.Wait()
}

func echoAll(c *rdmanet.Conn, size int) error {
	buf := make([]byte, size)
	for {
		if _, err := io.ReadFull(c, buf); err != nil {
			return err
		}
		if _, err := c.Write(buf); err != nil {
			return err
		}
	}
}
