package rdmanet_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

const (
	manyConns   = 1000
	manyBudget  = 64 << 20
	jobOffsets  = 4096
	maxJob      = 4 << 20
	jobHeader   = 16
	jobAccepted = 'y'
)

// jobData is what all conns send parts of.
var jobData = sync.OnceValue(func() []byte {
	b := make([]byte, maxJob+jobOffsets)
	x := uint64(1)
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return b
})

// job is what conn number id sends, size bytes, each conn something else.
func job(id, size int) []byte { return jobData()[id*7%jobOffsets:][:size] }

// sendJob sends a job and waits for the receiver's opinion of it.
func sendJob(c net.Conn, id, size int) error {
	var h [jobHeader]byte
	binary.LittleEndian.PutUint64(h[:], uint64(id))
	binary.LittleEndian.PutUint64(h[8:], uint64(size))
	if _, err := c.Write(h[:]); err != nil {
		return err
	}
	if _, err := c.Write(job(id, size)); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, h[:1]); err != nil {
		return err
	}
	if h[0] != jobAccepted {
		return fmt.Errorf("job %d arrived damaged", id)
	}
	return nil
}

// takeJob is the other side of sendJob.
func takeJob(c net.Conn) error {
	var h [jobHeader]byte
	if _, err := io.ReadFull(c, h[:]); err != nil {
		return err
	}
	id, size := binary.LittleEndian.Uint64(h[:]), binary.LittleEndian.Uint64(h[8:])
	want, opinion := job(int(id), int(size)), byte(jobAccepted)
	for buf := make([]byte, 64<<10); len(want) > 0; {
		n, err := c.Read(buf[:min(len(buf), len(want))])
		if err != nil {
			return err
		}
		if !bytes.Equal(want[:n], buf[:n]) {
			opinion = 'n'
		}
		want = want[n:]
	}
	_, err := c.Write([]byte{opinion})
	return err
}

// takeJobs serves a listener until that is closed.
func takeJobs(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_ = takeJob(c) // the sender knows
		}()
	}
}

// jobsListener is another process that takes jobs within a budget, until its
// standard input ends. Then it says how much of the budget was used.
func jobsListener(provider, _ string) error {
	tr := &rdmanet.Transport{MemoryLimit: manyBudget}
	lc := rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}, Backlog: manyConns}
	l, err := lc.Listen(context.Background(), "rdma", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	go takeJobs(l)
	if _, err = io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	fmt.Println(tr.Stats().Memory.High)
	return tr.Close()
}

// TestManyConnsOnASmallBudget: a thousand conns have 64 MiB on either side. All
// make progress all the time, and no side uses more.
func TestManyConnsOnASmallBudget(t *testing.T) {
	soakOnly(t, "it takes minutes with -race")
	for _, p := range []simfabric.Personality{simfabric.Shm(), simfabric.TCP()} {
		t.Run("simulated "+p.Provider, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Seed: 1, Personality: p})
			here, there := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
			cleanly(t, here)
			there.MemoryLimit = manyBudget
			l := listen(t, rdmanet.ListenConfig{Transport: there, Backlog: manyConns})
			go takeJobs(l)
			sendJobs(t, here, p.Provider, l.Addr().String(), rounds(64<<10, 1<<20))
			assert.LessOrEqual(t, there.Stats().Memory.High, int64(manyBudget))
			require.NoError(t, there.Close())
			assert.Zero(t, there.Stats().Memory.Used)
		})
	}
	for _, provider := range realProviders {
		t.Run(provider, func(t *testing.T) {
			here := new(rdmanet.Transport)
			cleanly(t, here)
			cmd := process(t, "jobs", provider, "")
			stdin, err := cmd.StdinPipe()
			require.NoError(t, err)
			stdout, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			lines := bufio.NewScanner(stdout)
			require.True(t, lines.Scan())
			sendJobs(t, here, provider, lines.Text(), rounds(1<<20, 4<<20))
			require.NoError(t, stdin.Close())
			require.True(t, lines.Scan())
			high, err := strconv.Atoi(lines.Text())
			require.NoError(t, err)
			assert.LessOrEqual(t, high, manyBudget)
			require.NoError(t, cmd.Wait())
			t.Logf("the listener used %d MiB at most", high>>20)
		})
	}
}

// sendJobs opens manyConns conns, sends over all of them at once, and watches that
// none stands still.
func sendJobs(t *testing.T, tr *rdmanet.Transport, provider, addr string, size int) {
	t.Helper()
	tr.MemoryLimit = manyBudget
	d := &rdmanet.Dialer{Transport: tr, Providers: []string{provider}, Timeout: patience}
	conns := make([]*rdmanet.Conn, manyConns)
	for i := range conns {
		c, err := d.Dial("rdma", addr)
		require.NoError(t, err)
		conns[i] = c.(*rdmanet.Conn)
	}
	start := time.Now()
	var working sync.WaitGroup
	for i, c := range conns {
		working.Go(func() {
			assert.NoError(t, sendJob(c, i, size))
			assert.NoError(t, c.Close())
		})
	}
	done := make(chan struct{})
	go func() { working.Wait(); close(done) }()
	worst, large := watchProgress(conns, done)
	took := time.Since(start)
	s := tr.Stats()
	t.Logf("%d conns sent %d KiB each in %v; longest longestWait of one: %v; %.0f %% by RDMA write; budget used here at most: %d MiB",
		manyConns, size>>10, took.Round(time.Millisecond), worst.Round(time.Millisecond),
		100*float64(large)/float64(manyConns*size), s.Memory.High>>20)
	assert.Less(t, worst, longestWait)
	assert.Positive(t, large)
	assert.LessOrEqual(t, s.Memory.High, int64(manyBudget))
}

const (
	// flatGrowth is twice of what was measured between 20,000 and 100,000 cycles.
	flatGrowth = 8 << 20
	// forgotten is what libfabric 1.17 keeps of every handshake that opened two shm
	// endpoints, about one KiB each, twice over.
	forgotten = 4 << 10
)

// longestWait is how long a conn that has something to send may not move. On two
// cores that others used, too, it was 4 s with a mebibyte for each conn, of 5 to 9 s
// in all, and 15 s, of 38 s, with four.
const longestWait = 30 * time.Second

// watchProgress returns the longest time for which a conn that was not done did not
// move, and how much went by RDMA write.
func watchProgress(conns []*rdmanet.Conn, done <-chan struct{}) (worst time.Duration, large uint64) {
	at, moved := make([]time.Time, len(conns)), make([]uint64, len(conns))
	for i := range at {
		at[i] = time.Now()
	}
	for last := false; !last; {
		select {
		case <-done:
			last = true
		case <-time.After(50 * time.Millisecond):
		}
		large = 0
		for i, c := range conns {
			n := c.Info()
			large += n.LargeSent
			if m := n.LargeSent + n.SmallSent + n.SmallReceived; m != moved[i] {
				worst = max(worst, time.Since(at[i]))
				at[i], moved[i] = time.Now(), m
			}
		}
	}
	return worst, large
}

// TestIdleConnsOwnNoRings: the landing rings of conns that are open and idle come
// back, and go out again when they are wanted.
func TestIdleConnsOwnNoRings(t *testing.T) {
	onProviders(t, func(t *testing.T, pipe pipeFunc) {
		var conns [][2]*rdmanet.Conn
		for range 20 {
			a, b := pipe()
			conns = append(conns, [2]*rdmanet.Conn{a, b})
		}
		used := func() int64 { return rdmanet.UsedMemory(conns[0][0]) }
		var idle int64
		for round := range 3 {
			before := conns[0][1].Info().LargeReceived
			var wg sync.WaitGroup
			for i, c := range conns {
				wg.Go(func() { assert.NoError(t, sendJob(c[0], i, 1<<20)) })
				wg.Go(func() { assert.NoError(t, takeJob(c[1])) })
			}
			wg.Wait()
			assert.Greater(t, conns[0][1].Info().LargeReceived, before)
			if round == 0 { // staging memory stays, rings are out for up to two seconds
				eventually(t, func() bool { idle = used(); time.Sleep(2500 * time.Millisecond); return used() == idle }, "rest")
				continue
			}
			assert.Greater(t, used(), idle, "rings are out")
			start := time.Now()
			eventually(t, func() bool { return used() <= idle }, "all rings come back")
			t.Logf("back after %v", time.Since(start).Round(time.Millisecond))
		}
		for _, c := range conns {
			closeAll(t, c[0], c[1])
		}
	})
}

// TestFlatMemory: conns that come and go leave nothing behind.
func TestFlatMemory(t *testing.T) {
	soakOnly(t, "what the library frees, malloc(3) returns at one time and keeps at another")
	for _, provider := range realProviders {
		for name, tt := range map[string]struct {
			cycles int
			grown  int64 // bytes that the process may grow by
			reuse  bool
		}{
			"reuse":    {rounds(500, 100_000), flatGrowth, true},
			"no reuse": {rounds(20, 2000), flatGrowth + int64(rounds(20, 2000))*forgotten, false},
		} {
			t.Run(provider+"/"+name, func(t *testing.T) {
				tr := new(rdmanet.Transport)
				cleanly(t, tr)
				l := listen(t, rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}})
				go takeJobs(l)
				d := &rdmanet.Dialer{Transport: tr, Providers: []string{provider}, Timeout: patience, DisableReuse: !tt.reuse}
				cycle := func(i int) {
					size := 100
					switch { // some by RDMA
					case i%256 == 255:
						size = 4 << 20
					case i%16 == 15:
						size = 256 << 10
					}
					c, err := d.Dial("rdma", l.Addr().String())
					require.NoError(t, err)
					require.NoError(t, sendJob(c, i, size))
					require.NoError(t, c.Close())
				}
				for i := range max(tt.cycles/4, 40) {
					cycle(16*i + 15) // large ones: staging memory, once mapped, stays
				}
				var samples []int64
				start, before := time.Now(), state(t, tr)
				for i := range tt.cycles {
					cycle(i)
					if i%(tt.cycles/5) == tt.cycles/5-1 {
						samples = append(samples, resident(t))
						t.Logf("after %d cycles: %.1f MiB resident", i+1, float64(samples[len(samples)-1])/(1<<20))
					}
				}
				took := time.Since(start)
				after := state(t, tr)
				t.Logf("%d cycles, %v each: %v, then %v", tt.cycles, took/time.Duration(tt.cycles), before, after)
				grown := after.resident - before.resident
				if tt.reuse {
					// With the same endpoints throughout: what libfabric frees with them, up to
					// 80 MiB for tcp;ofi_rxm, malloc(3) returns at one time and keeps at another.
					grown = samples[len(samples)-1] - samples[0]
				}
				assert.Less(t, grown, tt.grown)
				assert.LessOrEqual(t, after.goroutines, before.goroutines)
				assert.LessOrEqual(t, after.files, before.files)
				assert.LessOrEqual(t, after.names, before.names)
			})
		}
	}
}

// processState is what must not grow.
type processState struct {
	resident                 int64
	goroutines, files, names int
}

func (s processState) String() string {
	return fmt.Sprintf("%.1f MiB resident, %d goroutines, %d files, %d names in /dev/shm",
		float64(s.resident)/(1<<20), s.goroutines, s.files, s.names)
}

// state takes everything apart that no conn uses, and looks at what is left.
func state(t *testing.T, tr *rdmanet.Transport) processState {
	t.Helper()
	eventually(t, func() bool {
		tr.CloseIdle()
		s := tr.Stats()
		return s.Peers == 0 && s.Memory.Used == 0
	}, "no peers")
	return processState{resident(t), runtime.NumGoroutine(), openFiles(t), len(sharedMemory(t))}
}

// resident is how much memory this process has, without what Go only keeps for
// later.
func resident(t *testing.T) int64 {
	t.Helper()
	runtime.GC()
	debug.FreeOSMemory()
	b, err := os.ReadFile("/proc/self/statm")
	require.NoError(t, err)
	pages, err := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	require.NoError(t, err)
	return pages * int64(os.Getpagesize())
}
