package rdmanet_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

const manyBudget = 64 << 20

func init() { rdmatest.Roles["jobs"] = jobsListener }

// jobsListener is another process that takes jobs within a budget until its standard input
// ends. Then it prints how much of the budget was used at most.
func jobsListener(provider, _ string) error {
	tr := &rdmanet.Transport{MemoryLimit: manyBudget}
	lc := rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}, Backlog: rdmatest.ManyConns}
	l, err := lc.Listen(context.Background(), "rdma", testenv.Address())
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	go rdmatest.TakeJobs(l)
	if _, err = io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	fmt.Println(tr.Stats().Memory.High)
	return tr.Close()
}

// TestManyConnsOnASmallBudget: a thousand conns share 64 MiB on either side. All of them
// make progress all the time, and neither side uses more.
func TestManyConnsOnASmallBudget(t *testing.T) {
	for _, p := range []simfabric.Personality{simfabric.Shm(), simfabric.TCP()} {
		t.Run("simulated "+p.Provider, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Seed: 1, Personality: p})
			here, there := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
			rdmatest.Cleanly(t, here)
			there.MemoryLimit = manyBudget
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, Backlog: rdmatest.ManyConns})
			var served sync.WaitGroup
			served.Go(func() { rdmatest.TakeJobs(l) })
			sendJobs(t, here, p.Provider, l.Addr().String(), rdmatest.Rounds(256<<10, 1<<20))
			assert.LessOrEqual(t, there.Stats().Memory.High, int64(manyBudget))
			require.NoError(t, there.Close())
			served.Wait() // conns that were lost keep their memory until they are closed
			assert.Zero(t, there.Stats().Memory.Used)
		})
	}
	for _, provider := range rdmatest.Providers {
		t.Run(provider, func(t *testing.T) {
			here := new(rdmanet.Transport)
			rdmatest.Cleanly(t, here)
			cmd := rdmatest.Process(t, "jobs", provider, "")
			stdin, stdout := rdmatest.Start(t, cmd)
			sendJobs(t, here, provider, rdmatest.Line(t, stdout), rdmatest.Rounds(256<<10, 4<<20))
			require.NoError(t, stdin.Close())
			high, err := strconv.Atoi(rdmatest.Line(t, stdout))
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
	d := &rdmanet.Dialer{Transport: tr, Providers: []string{provider}, Timeout: rdmatest.Patience}
	conns := make([]*rdmanet.Conn, rdmatest.ManyConns)
	for i := range conns {
		c, err := d.Dial("rdma", addr)
		require.NoError(t, err)
		conns[i] = c.(*rdmanet.Conn)
	}
	start := time.Now()
	var working sync.WaitGroup
	for i, c := range conns {
		working.Go(func() {
			assert.NoError(t, rdmatest.SendJob(c, i, size))
			assert.NoError(t, c.Close())
		})
	}
	done := make(chan struct{})
	go func() { working.Wait(); close(done) }()
	worst, large := watchProgress(conns, done)
	took := time.Since(start)
	s := tr.Stats()
	t.Logf("%d conns sent %d KiB each in %v; longest standstill of one: %v; %.0f %% by RDMA write; budget used here at most: %d MiB",
		rdmatest.ManyConns, size>>10, took.Round(time.Millisecond), worst.Round(time.Millisecond),
		100*float64(large)/float64(rdmatest.ManyConns*size), s.Memory.High>>20)
	assert.Less(t, worst, longestStandstill)
	assert.Positive(t, large)
	assert.LessOrEqual(t, s.Memory.High, int64(manyBudget))
}

// longestStandstill is how long a conn that has something to send may stand still. On two
// cores that others used as well, the longest was 4 s, of 5 to 9 s in all, with a mebibyte
// for each conn, and 15 s, of 38 s, with four mebibytes.
const longestStandstill = 30 * time.Second

// watchProgress returns the longest time for which a conn that was not done stood still,
// and how many bytes went by RDMA write.
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

// TestIdleConnsOwnNoRings: the landing rings of conns that are open but idle are taken
// back, and are granted again when they are wanted.
func TestIdleConnsOwnNoRings(t *testing.T) {
	onProviders(t, func(t *testing.T, pipe pipeFunc) {
		var conns [][2]*rdmanet.Conn
		for range 20 {
			a, b := pipe()
			conns = append(conns, [2]*rdmanet.Conn{a, b})
		}
		large := func() (sum uint64) { // not all data: the first of it goes in messages
			for _, c := range conns {
				sum += c[1].Info().LargeReceived
			}
			return sum
		}
		landing := func() int64 { return rdmanet.LandingMemory(conns[0][0]) }
		for range 2 {
			before := large()
			var wg sync.WaitGroup
			for i, c := range conns {
				wg.Go(func() { assert.NoError(t, rdmatest.SendJob(c[0], i, 1<<20)) })
				wg.Go(func() { assert.NoError(t, rdmatest.TakeJob(c[1])) })
			}
			wg.Wait()
			assert.Greater(t, large(), before)
			assert.Positive(t, landing())
			start := time.Now()
			rdmatest.Eventually(t, func() bool { return landing() == 0 }, "all rings come back")
			t.Logf("back after %v", time.Since(start).Round(time.Millisecond))
		}
		for _, c := range conns {
			rdmatest.CloseAll(t, c[0], c[1])
		}
	})
}

// TestIdleWriteToHoldsNoBuffer: a WriteTo that waits takes a buffer for its copy only once there is
// something to copy.
func TestIdleWriteToHoldsNoBuffer(t *testing.T) {
	const conns = 100
	tr := simulated(t, simfabric.TCP())
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
	var pairs [conns][2]*rdmanet.Conn
	for i := range pairs {
		pairs[i][0], pairs[i][1] = rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr}, l)
	}
	before := liveHeap()
	var wrote, ended sync.WaitGroup
	for _, p := range pairs {
		wrote.Add(1)
		ended.Go(func() {
			n, err := p[1].WriteTo(writerFunc(func(b []byte) (int, error) {
				wrote.Done()
				return len(b), nil
			}))
			assert.NoError(t, err)
			assert.EqualValues(t, 1, n)
		})
		_, err := p[0].Write([]byte{1})
		require.NoError(t, err)
	}
	wrote.Wait() // and then it waits again
	assert.Eventually(t, func() bool { return (liveHeap()-before)/conns < rdmanet.CopySize/4 }, rdmatest.Patience, time.Millisecond,
		"the buffers are given back")
	for _, p := range pairs {
		require.NoError(t, p[0].CloseWrite())
	}
	ended.Wait()
	for _, p := range pairs {
		rdmatest.CloseAll(t, p[0], p[1])
	}
}

// liveHeap returns how many bytes of the heap are in use.
func liveHeap() int64 {
	runtime.GC()
	runtime.GC() // a sync.Pool keeps what it has for one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
