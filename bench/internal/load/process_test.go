package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/bench/internal/benchtest"
	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// asServer, set in the environment, turns the test binary into a server of other machines.
const asServer = "BENCH_TEST_AS_SERVER"

// TestMain lets the test binary play the roles that a Generator gives to copies of itself.
func TestMain(m *testing.M) {
	if status, isChild := Child(os.Args); isChild {
		os.Exit(status)
	}
	// By default the race detector keeps every process for a second at its end.
	if os.Getenv("GORACE") == "" {
		os.Setenv("GORACE", "atexit_sleep_ms=10")
	}
	if os.Getenv(asServer) == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := (Server{Host: "127.0.0.1", Machine: "a machine"}).Serve(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func TestMeasureEveryModeAcrossProcesses(t *testing.T) {
	for _, c := range []workload.Case{
		{Mode: workload.ModeLat, Transport: "tcp", Size: 64, Inflight: 1, Conns: 1},
		{Mode: workload.ModeLat, Transport: "unix", Size: 64 << 10, Inflight: 1, Conns: 2},
		{Mode: workload.ModeBW, Transport: "tcp", Size: 1 << 20, Inflight: 1, Conns: 1},
		{Mode: workload.ModeBW, Transport: "unix", Size: 100, Inflight: 1, Conns: 2},
		{Mode: workload.ModeRPC, Transport: "tcp", Size: 64, Inflight: 4, Conns: 2},
		{Mode: workload.ModeRPC, Transport: "unix", Size: 4 << 20, Inflight: 1, Conns: 1},
		{Mode: workload.ModeConn, Transport: "tcp", Size: 1, Inflight: 1, Conns: 2},
		{Mode: workload.ModeConn, Transport: "unix", Size: 1, Inflight: 1, Conns: 1},
		{Mode: workload.ModeZC, Transport: "tcp", Size: 64 << 10, Inflight: 1, Conns: 1},
		{Mode: workload.ModeZC, Transport: "unix", Size: 100, Inflight: 1, Conns: 2},
		{Mode: workload.ModeHTTP, Transport: "tcp", Size: workload.BodySize, Inflight: 1, Conns: 1},
		{Mode: workload.ModeIdle, Transport: "tcp", Size: 1, Inflight: 1, Conns: 3},
		{Mode: workload.ModeIdle, Transport: "unix", Size: 1, Inflight: 1, Conns: 1},
	} {
		testMeasure(t, c)
	}
}

// testMeasure checks that a measurement of c is complete.
func testMeasure(t *testing.T, c workload.Case) {
	t.Helper()
	t.Run(c.String(), func(t *testing.T) {
		s, err := measure(t.Context(), benchtest.Program(t), Job{Case: c, Host: "127.0.0.1", WarmUp: 10 * time.Millisecond, Time: 50 * time.Millisecond})
		require.NoError(t, err)
		assert.Positive(t, s.Elapsed)
		assert.Positive(t, s.CPU())
		if c.Mode == workload.ModeIdle {
			assert.Zero(t, s.Ops)
			return
		}
		assert.Positive(t, s.Ops)
		assert.Positive(t, s.P50)
		assert.GreaterOrEqual(t, s.P90, s.P50)
		assert.GreaterOrEqual(t, s.P99, s.P90)
		assert.GreaterOrEqual(t, s.P999, s.P99)
		assert.Positive(t, s.Mallocs())
		assert.LessOrEqual(t, s.Fairness, 1.0)
		assert.GreaterOrEqual(t, s.Fairness, 1/float64(c.Conns*c.Inflight))
	})
}

// On a busy host every CPU computes for as long as a measurement lasts.
func TestLoadIsThereWhileItIsMeasured(t *testing.T) {
	idle := func() time.Duration { // user time of the child processes that have ended, the load among them
		var u syscall.Rusage
		require.NoError(t, syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u))
		return time.Duration(u.Utime.Nano())
	}
	before := idle()
	const d = 500 * time.Millisecond
	_, err := besideLoad(t.Context(), benchtest.Program(t), Job{Case: workload.Case{Load: true}}, func() (workload.Sample, error) {
		time.Sleep(d)
		return workload.Sample{}, nil
	})
	require.NoError(t, err)
	assert.Greater(t, idle()-before, d/10, "it has ended, and had computed")
	_, err = besideLoad(t.Context(), "/nowhere", Job{}, func() (workload.Sample, error) { return workload.Sample{}, nil })
	require.NoError(t, err, "there is none")
}

func TestFailuresNameTheProcess(t *testing.T) {
	_, err := measure(t.Context(), benchtest.Program(t), Job{Case: workload.Case{Mode: workload.ModeLat, Transport: "pigeon", Size: 1, Conns: 1}})
	assert.ErrorContains(t, err, `server: unknown transport "pigeon"`)

	j := Job{Case: workload.Case{Mode: workload.ModeLat, Transport: "tcp", Size: 1, Conns: 1}}
	client, err := start(t.Context(), benchtest.Program(t), roleClient, j)
	require.NoError(t, err)
	_, err = client.ask("127.0.0.1:1")
	assert.ErrorContains(t, err, "client: dial tcp 127.0.0.1:1")
	assert.ErrorContains(t, client.stop(), "exit status 1")

	_, err = measure(t.Context(), filepath.Join(t.TempDir(), "missing"), j)
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// A process that fails during its cleanup reports that after its last reply.
func TestStopTellsWhyTheShutdownFailed(t *testing.T) {
	server, err := start(t.Context(), benchtest.Program(t), roleServer, Job{Case: workload.Case{Mode: workload.ModeLat, Transport: "unix", Size: 1}})
	require.NoError(t, err)
	_, err = server.receive()
	require.NoError(t, err)
	// A line too long to be read makes the shutdown fail.
	_, err = server.in.Write(bytes.Repeat([]byte("x"), bufio.MaxScanTokenSize+1))
	require.NoError(t, err)
	assert.ErrorContains(t, server.stop(), "server: exit status 1: bufio.Scanner: token too long")

	// What another machine's process ended with is known by its last reply alone.
	_, in := io.Pipe()
	far := &process{role: "far", in: in, out: json.NewDecoder(strings.NewReader(`{} {"Error":"late"}`)), wait: func() error { return nil }}
	assert.EqualError(t, far.stop(), "far: late")
}

func TestMeasureEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := measure(ctx, benchtest.Program(t), Job{Case: workload.Case{Mode: workload.ModeLat, Transport: "tcp", Size: 1, Conns: 1}, Host: "127.0.0.1", Time: time.Minute})
	require.Error(t, err)
	assert.Less(t, time.Since(start), 10*time.Second)
}
