package systemtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/race"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

const (
	// flatGrowth is the most, in bytes, by which a process may grow between the first
	// fifth of the cycles and the last. Measured over 80,000 cycles: 0.3 MiB for shm and
	// net, and 2.8 MiB for tcp;ofi_rxm, all of it in the first 20,000. Without reuse,
	// landing memory comes in slabs of 2 MiB, and any sample may find two slabs more.
	flatGrowth = 8 << 20
	// forgotten is twice what libfabric 1.17 keeps, in bytes, of each handshake: about
	// one KiB for each of the two shm endpoints that it opens.
	forgotten = 4 << 10
)

// flatReport is what a process reports after it has opened and closed conns.
type flatReport struct {
	Each          time.Duration // the mean duration of a cycle
	Resident      []int64       // bytes, after each fifth of the cycles
	Before, After flatState     // while there is no peer
}

type flatState struct{ Goroutines, Files, Names int }

func init() { rdmatest.Roles["cycles"] = cycles }

// cycles opens a conn, transfers data and closes it, as often as spec says, and prints a
// report. It runs in a process of its own: traces of other tests in malloc(3) would blur
// the picture.
func cycles(provider, spec string) error {
	dialer := rdmanet.Dialer{Transport: new(rdmanet.Transport), Providers: []string{provider}, Timeout: rdmatest.Patience}
	tr := dialer.Transport
	how, count, _ := strings.Cut(spec, ":")
	dialer.DisableReuse = how == "no reuse"
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	lc := rdmanet.ListenConfig{Transport: tr, Providers: dialer.Providers}
	l, err := lc.Listen(context.Background(), "rdma", testenv.Address())
	if err != nil {
		return err
	}
	go rdmatest.TakeJobs(l)
	cycle := func(i int) error {
		size := 100
		switch { // some are large enough for RDMA writes
		case i%256 == 255:
			size = 4 << 20
		case i%16 == 15:
			size = 256 << 10
		}
		c, err := dialer.Dial("rdma", l.Addr().String())
		if err != nil {
			return err
		}
		return errors.Join(rdmatest.SendJob(c, i, size), c.Close())
	}
	for i := range max(n/10, 40) {
		if err := cycle(16*i + 15); err != nil {
			return err
		}
	}
	var r flatReport
	if r.Before, err = quiet(tr, 0); err != nil {
		return err
	}
	start := time.Now()
	for i := range n {
		if err := cycle(i); err != nil {
			return err
		}
		if i%(n/5) == n/5-1 {
			if err := until(func() bool {
				x := tr.Stats()
				return x.Memory.Used < 8<<20 && (!dialer.DisableReuse || x.Peers == 0) // the last peer may still be closing
			}); err != nil {
				return err
			}
			releaseUnused()
			r.Resident = append(r.Resident, resident())
		}
	}
	r.Each = time.Since(start) / time.Duration(n)
	if r.After, err = quiet(tr, r.Before.Goroutines); err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		return err
	}
	return tr.Close()
}

// until waits, for at most rdmatest.Patience, until condition is true.
func until(condition func() bool) error {
	for start := time.Now(); !condition(); time.Sleep(time.Millisecond) {
		if time.Since(start) > rdmatest.Patience {
			return errors.New("what was closed does not go")
		}
	}
	return nil
}

// quiet closes everything that no conn uses, and returns what is left once there are at
// most that many goroutines. It does not wait for goroutines if the number is 0.
func quiet(tr *rdmanet.Transport, goroutines int) (s flatState, err error) {
	err = until(func() bool {
		tr.CloseIdle()
		x := tr.Stats()
		return x.Peers == 0 && x.Memory.Used == 0 && (goroutines == 0 || runtime.NumGoroutine() <= goroutines)
	})
	if err != nil {
		return s, err
	}
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return s, err
	}
	names, err := rdmatest.RegionsOf(time.Time{}, os.Getpid())
	return flatState{runtime.NumGoroutine(), len(files), len(names)}, err
}

// releaseUnused gives memory back to the system that Go only keeps for later.
func releaseUnused() {
	runtime.GC()
	debug.FreeOSMemory()
}

// resident returns how much resident memory this process has, in bytes, or -1 if that is not known.
func resident() int64 {
	b, _ := os.ReadFile("/proc/self/statm")
	if fields := strings.Fields(string(b)); len(fields) > 1 {
		if pages, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
			return pages * int64(os.Getpagesize())
		}
	}
	return -1
}

// TestFlatMemory: conns that come and go leave nothing behind.
func TestFlatMemory(t *testing.T) {
	for _, provider := range rdmatest.Providers {
		for how, n := range map[string]int{"reuse": rdmatest.AllRounds(500, 100_000), "no reuse": rdmatest.AllRounds(20, 2000)} {
			t.Run(provider+"/"+how, func(t *testing.T) {
				cmd := rdmatest.Process(t, "cycles", provider, fmt.Sprint(how, ":", n))
				// AddressSanitizer would otherwise keep what was freed.
				cmd.Env = append(cmd.Env, "ASAN_OPTIONS="+os.Getenv("ASAN_OPTIONS")+":quarantine_size_mb=0")
				out, err := cmd.Output()
				require.NoError(t, err)
				var r flatReport
				require.NoError(t, json.Unmarshal(out, &r))
				mib := make([]string, len(r.Resident))
				for i, b := range r.Resident {
					mib[i] = fmt.Sprintf("%.1f", float64(b)/(1<<20))
				}
				t.Logf("%d cycles of %v: %v MiB resident after each fifth; at first %+v, then %+v",
					n, r.Each.Round(time.Microsecond), mib, r.Before, r.After)
				limit := int64(flatGrowth)
				if how == "no reuse" {
					limit += int64(n) * forgotten
				}
				require.Len(t, r.Resident, 5)
				assert.Positive(t, r.Resident[0])
				if !race.Enabled { // it keeps memory for each cleanup that a conn's handle has had
					assert.Less(t, r.Resident[4]-r.Resident[0], limit)
				}
				assert.LessOrEqual(t, r.After.Goroutines, r.Before.Goroutines)
				assert.LessOrEqual(t, r.After.Files, r.Before.Files)
				assert.LessOrEqual(t, r.After.Names, r.Before.Names)
			})
		}
	}
}
