package load

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/bench/internal/benchtest"
	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

func fanInJob(w workload.Case, v workload.Transport) Job {
	return Job{Case: w.Over(v), Host: "127.0.0.1", WarmUp: 10 * time.Millisecond, Time: 50 * time.Millisecond}
}

// testFanIn measures every kind of row with peers, all with one set of processes.
func testFanIn(t *testing.T, v workload.Transport) {
	fs := &fanIns{program: benchtest.Program(t)}
	defer fs.close()
	works := []workload.Case{workload.Lat64.Among(0), workload.BW64K.Among(2), workload.Lat64.Among(2), workload.IdlePeers(3), workload.Lat64.By(3), workload.BW64K.By(3), workload.Lat64.By(2)}
	for i, w := range works {
		j := fanInJob(w, v)
		j.Last = i == len(works)-1
		s, err := fs.measure(t.Context(), j)
		require.NoError(t, err, "%v", j.Case)
		assert.Positive(t, s.Elapsed)
		assert.Positive(t, s.CPU())
		assert.Equal(t, w.Mode != workload.ModeIdle, s.Ops > 0)
		assert.Equal(t, w.Mode != workload.ModeIdle, s.P50 > 0)
		assert.Equal(t, w.IsAmong(), s.Alone != nil)
		if w.IsAmong() {
			assert.Positive(t, s.Alone.Ops)
			assert.Positive(t, s.Alone.P50)
			assert.Nil(t, s.Alone.Alone)
			assert.Len(t, fs.now.alone.clients, 1)
			assert.NotEqual(t, fs.now.server.pid, fs.now.alone.server.pid)
		}
		if w.Busy > 1 {
			assert.Greater(t, s.Fairness, 1/float64(w.Busy), "%v: only one was busy", w)
		}
		if j.Last {
			assert.Nil(t, fs.now)
			continue
		}
		assert.Len(t, fs.now.clients, w.Peers())
		pids := make(map[int]bool)
		for _, p := range append(fs.now.clients, fs.now.server) {
			pids[p.pid] = true
		}
		assert.Len(t, pids, w.Peers()+1, "each has a process of its own")
	}
}

func TestFanIn(t *testing.T) { testFanIn(t, workload.TCP) }

// cpuTicks is the CPU time that a process has used, in hundredths of a second.
func cpuTicks(t *testing.T, pid int) (ticks int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	for _, f := range statFields(string(text))[11:13] {
		var n int
		_, err := fmt.Sscan(f, &n)
		require.NoError(t, err)
		ticks += n
	}
	return ticks
}

// While one peer works, the others use no CPU time, whatever they have done before.
func TestIdlePeersAreIdle(t *testing.T) {
	c, err := startFanIn(t.Context(), benchtest.Program(t), fanInJob(workload.Lat64.Among(1), workload.TCP))
	require.NoError(t, err)
	defer c.end(nil)
	_, err = c.measure(fanInJob(workload.Lat64.By(2), workload.TCP), false)
	require.NoError(t, err)
	busy, idle := c.clients[0].pid, c.clients[1].pid
	busyBefore := cpuTicks(t, busy)
	j := fanInJob(workload.Lat64.Among(1), workload.TCP)
	j.Time = 500 * time.Millisecond
	const enough = 5 // ticks of 10 ms
	worked := 0
	for i := 0; i < 20 && worked <= enough; i++ { // other tests may have the processors
		idleBefore := cpuTicks(t, idle)
		_, err = c.measure(j, false)
		require.NoError(t, err)
		assert.LessOrEqual(t, cpuTicks(t, idle)-idleBefore, 1)
		worked = cpuTicks(t, busy) - busyBefore
	}
	assert.Greater(t, worked, enough)
	assert.NoError(t, c.stop())
}

func TestAPeerThatIsGoneFailsTheRow(t *testing.T) {
	fs := &fanIns{program: benchtest.Program(t)}
	defer fs.close()
	_, err := fs.measure(t.Context(), fanInJob(workload.Lat64.Among(2), workload.TCP))
	require.NoError(t, err)
	gone, err := os.FindProcess(fs.now.clients[2].pid)
	require.NoError(t, err)
	require.NoError(t, gone.Kill())
	_, _ = gone.Wait()
	require.Eventually(t, func() bool { _, err := fs.now.usage(); return err != nil }, 10*time.Second, time.Millisecond)
	_, err = fs.measure(t.Context(), fanInJob(workload.Lat64.Among(2), workload.TCP))
	assert.EqualError(t, err, "the server has 2 conns of 3 peers")
	assert.Nil(t, fs.now, "the next row has new processes")
	_, err = fs.measure(t.Context(), fanInJob(workload.Lat64.Among(2), workload.TCP))
	assert.NoError(t, err)
}

func TestFailuresOfAFanInNameTheProcess(t *testing.T) {
	fs := &fanIns{program: benchtest.Program(t)}
	_, err := fs.measure(t.Context(), fanInJob(workload.Lat64.Among(2), workload.Transport{Name: "pigeon"}))
	assert.ErrorContains(t, err, `server: unknown transport "pigeon"`)
	assert.Nil(t, fs.now)

	c, err := startFanIn(t.Context(), benchtest.Program(t), fanInJob(workload.Lat64.Among(2), workload.TCP))
	require.NoError(t, err)
	c.address = "127.0.0.1:1"
	fs.now = c
	_, err = fs.measure(t.Context(), fanInJob(workload.Lat64.Among(2), workload.TCP))
	assert.ErrorContains(t, err, "client: dial tcp 127.0.0.1:1")
	assert.Nil(t, fs.now)
	assert.Empty(t, children(t))
}

func TestAFanInEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	fs := &fanIns{program: benchtest.Program(t)}
	_, err := fs.measure(ctx, fanInJob(workload.Lat64.Among(3), workload.TCP))
	require.NoError(t, err)
	assert.Len(t, children(t), 5+2, "a peer alone and its server are beside")
	j := fanInJob(workload.Lat64.By(4), workload.TCP)
	j.Time = time.Minute
	time.AfterFunc(200*time.Millisecond, cancel)
	start := time.Now()
	_, err = fs.measure(ctx, j)
	require.Error(t, err)
	assert.Less(t, time.Since(start), 10*time.Second)
	assert.Nil(t, fs.now)
	assert.Empty(t, children(t))
}

// children are the processes that this one has started and not waited for.
func children(t *testing.T) (pids []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended meanwhile
		}
		var pid, parent int
		_, err = fmt.Sscanf(string(text), "%d (", &pid)
		require.NoError(t, err)
		_, err = fmt.Sscan(statFields(string(text))[1], &parent)
		require.NoError(t, err)
		if parent == os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// statFields returns the fields of a stat file (proc_pid_stat(5)), from the third one on.
func statFields(stat string) []string {
	return strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
}

func TestEachStopsAtAnError(t *testing.T) {
	var calls, now, most atomic.Int64
	err := each(1000, 3, func(i int) error {
		calls.Add(1)
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(time.Millisecond)
		if i == 9 {
			return errors.New("tenth")
		}
		return nil
	})
	assert.EqualError(t, err, "tenth")
	assert.Less(t, calls.Load(), int64(100))
	assert.EqualValues(t, 3, most.Load())
	assert.NoError(t, each(0, 0, nil))
}

func TestTogetherIsFromTheFirstStartToTheLastEnd(t *testing.T) {
	began := time.Now()
	h := new(workload.Histogram)
	h.Add(10)
	h.Add(30)
	one := reply{Began: began.Add(time.Second), Times: h.Counted(), Sample: workload.Sample{Ops: 2, Elapsed: 2 * time.Second, Client: workload.Usage{CPU: 1, Mallocs: 2}}}
	h.Add(20)
	h.Add(200 * time.Hour)
	two := reply{Began: began, Times: h.Counted(), Sample: workload.Sample{Ops: 4, Elapsed: time.Second, Client: workload.Usage{CPU: 10, Mallocs: 20}}}
	s := together([]reply{one, two})
	assert.Equal(t, 3*time.Second, s.Elapsed)
	assert.EqualValues(t, 6, s.Ops)
	assert.EqualValues(t, 20, s.P50)
	assert.Greater(t, s.P999, 100*time.Hour)
	assert.InDelta(t, 0.9, s.Fairness, 1e-9)
	assert.Equal(t, workload.Usage{CPU: 11, Mallocs: 22}, s.Client)
	assert.Zero(t, together(nil))
}
