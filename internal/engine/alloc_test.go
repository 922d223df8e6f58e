//go:build !race && !asan

package engine

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNoAllocations: Read and Write between two warm conns allocate nothing, for small data and for large data under each
// rule of notification, whether waits poll or park. The race detector allocates too, so this file is not built with -race.
func TestNoAllocations(t *testing.T) {
	for _, name := range []string{"shm", "tcp", "verbs", "saw", "deliver", "shm/awkward", "cqdata/depth 1"} {
		for _, spin := range []time.Duration{DefaultSpin, -1} {
			t.Run(fmt.Sprintf("%s/spin=%v", name, spin), func(t *testing.T) {
				l, a, b := newConns(t, personalities()[name], Config{Spin: spin})
				lateReads(t, a, b)
				lateReads(t, b, a)
				roundTrips(t, a, b)
				a, b = l.dial(t)
				oneWay(t, a, b)
			})
		}
	}
}

func roundTrips(t *testing.T, a, b *Conn) {
	echoed := begin(func() error { return echo(b, 64) })
	buf := make([]byte, 64)
	noAllocations(t, "round trip of 64 B", func() error { return roundTrip(a, buf) })
	require.NoError(t, a.Close())
	require.NoError(t, <-echoed)
	require.NoError(t, b.Close())
}

// lateReads reads each message in two halves: the second half comes out of the reassembly ring.
func lateReads(t *testing.T, a, b *Conn) {
	buf := make([]byte, 128)
	noAllocations(t, "reads of half a message", func() error {
		_, err := a.Write(buf)
		for range 2 {
			if err == nil {
				_, err = io.ReadFull(b, buf[:64])
			}
		}
		return err
	})
}

func oneWay(t *testing.T, a, b *Conn) {
	drained := begin(func() error { return drain(b, 64<<10) })
	buf := make([]byte, 64<<10)
	noAllocations(t, "64 KiB one way", func() error { _, err := a.Write(buf); return err })
	require.Positive(t, a.Seen().LargeOut)
	require.NoError(t, a.CloseWrite())
	require.NoError(t, <-drained)
	closeConns(t, a, b)
}

// noAllocations runs op until everything has reached its final size, then fails the test if thousands of further runs
// allocate in this module. A few objects are tolerated: a queue can still grow, and a cache of the runtime can be empty.
func noAllocations(t *testing.T, what string, op func() error) {
	t.Helper()
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	runtime.MemProfileRate = 1
	// The first look of a process at its collections makes the runtime's table of metrics, 55 objects.
	metrics.Read([]metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}})
	// A collection empties the runtime's own caches.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	const warm, rounds, few = 1000, 2000, 20
	repeat := func(n int) {
		for range n {
			if err := op(); err != nil {
				t.Fatal(err)
			}
		}
	}
	repeat(warm)
	before := allocations()
	repeat(rounds)
	var sum int64
	var list []string
	for at, n := range allocations() {
		if n -= before[at]; n > 0 {
			sum += n
			list = append(list, fmt.Sprintf("%6d at %s", n, at))
		}
	}
	slices.Sort(list)
	slices.Reverse(list)
	assert.LessOrEqual(t, sum, int64(few), "%s: objects allocated in %d operations:\n%s", what, rounds, strings.Join(list, "\n"))
}

const module = "github.com/seed202c38ff/fabricnet/"

// allocations counts the objects that this module has allocated, by function and line. Those of tests and of the
// simulated fabric are left out: the latter are copies and queues of the simulation, which no real fabric has.
func allocations() map[string]int64 {
	runtime.GC() // the profile may be two collections old
	runtime.GC()
	n, _ := runtime.MemProfile(nil, true)
	records := make([]runtime.MemProfileRecord, 2*n)
	n, ok := runtime.MemProfile(records, true)
	if !ok {
		panic("the memory profile has doubled")
	}
	all := map[string]int64{}
	for i := range records[:n] {
		if f, ok := innermost(records[i].Stack()); ok {
			all[fmt.Sprintf("%s:%d", f.Function, f.Line)] += records[i].AllocObjects
		}
	}
	return all
}

// innermost returns the innermost function of this module on a stack. ok is false if there is none,
// or if it belongs to a test or to the simulated fabric.
func innermost(stack []uintptr) (f runtime.Frame, ok bool) {
	frames := runtime.CallersFrames(stack)
	for more := true; more; {
		f, more = frames.Next()
		if f.Function == "runtime.acquireSudog" { // its cache may be empty after the collection
			return f, false
		}
		if at, ours := strings.CutPrefix(f.Function, module); ours {
			return f, !strings.HasSuffix(f.File, "_test.go") && !strings.Contains(at, "/simfabric.")
		}
	}
	return f, false
}
