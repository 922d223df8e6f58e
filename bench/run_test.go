package main

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/bench/internal/benchtest"
	"github.com/seed202c38ff/fabricnet/bench/internal/load"
	"github.com/seed202c38ff/fabricnet/bench/internal/report"
	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// asBench, set in the environment, turns the test binary into the benchmark itself.
const asBench = "BENCH_TEST_AS_BENCH"

// TestMain lets the test binary play the roles that the benchmark gives to
// copies of itself.
func TestMain(m *testing.M) {
	if status, isChild := load.Child(os.Args); isChild {
		os.Exit(status)
	}
	if os.Getenv(asBench) != "" {
		main()
		os.Exit(0)
	}
	// By default the race detector keeps every process for a second at its end.
	if os.Getenv("GORACE") == "" {
		os.Setenv("GORACE", "atexit_sleep_ms=10")
	}
	os.Exit(m.Run())
}

func TestFailedRowsAreReportedAndFailTheProgram(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out.json")
	err := bench(t.Context(), []string{"-modes", "lat", "-sizes", "8", "-providers", "none", "-rounds", "2", "-time", "10ms", "-json", file, "-report", filepath.Dir(file)})
	require.ErrorContains(t, err, "some rows have failed")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var saved struct{ Rows []map[string]any }
	require.NoError(t, json.Unmarshal(text, &saved))
	rows := saved.Rows
	require.Len(t, rows, 3)
	assert.NotContains(t, rows[0], "error")
	assert.NotContains(t, rows[1], "error")
	assert.Contains(t, rows[2], "error")
	page, err := os.ReadFile(filepath.Join(filepath.Dir(file), "index.html"))
	require.NoError(t, err)
	assert.Contains(t, string(page), "FAILED: round 1:")
}

// serveProcess runs bench -s in a process of its own until the test ends, and
// returns the address that it listens on.
func serveProcess(t *testing.T, args ...string) (address string) {
	t.Helper()
	cmd := exec.Command(benchtest.Program(t), append([]string{"-s", "-port", "0"}, args...)...)
	cmd.Env = append(os.Environ(), asBench+"=1")
	return benchtest.Serve(t, cmd)
}

func TestMeasureWithAServerElsewhere(t *testing.T) {
	profiles := t.TempDir()
	host, port, err := net.SplitHostPort(serveProcess(t, "-profile", profiles))
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "out.json")
	require.NoError(t, bench(t.Context(), []string{
		"-c", host, "-port", port, "-modes", "lat,bw,rpc,conn", "-sizes", "64", "-inflight", "2", "-providers", "", "-rounds", "2", "-time", "30ms", "-json", file,
	}))
	r, err := report.Read(file)
	require.NoError(t, err)
	assert.Contains(t, r.Server, r.Machine+", commit ")
	require.Len(t, r.Rows, 4)
	for _, row := range r.Rows {
		assert.Equal(t, workload.TransportTCP, row.Transport, "there are no Unix sockets between machines")
		assert.Empty(t, row.Error)
		assert.Positive(t, row.P50us)
		require.Len(t, row.Samples, 2)
		for _, s := range row.Samples {
			assert.Positive(t, s.Client.CPU)
			assert.Positive(t, s.Server.CPU, "the server's CPU is told")
		}
	}
	names, err := filepath.Glob(filepath.Join(profiles, "*"))
	require.NoError(t, err)
	assert.Len(t, names, 8, "the server's profiles are written where the server says")
}

func TestAKeptResultIsWrittenInEveryForm(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, bench(t.Context(), []string{
		"-from", "results/latest.json", "-json", in("json"), "-text", in("text"), "-csv", in("csv"), "-benchfmt", in("benchfmt"), "-report", in("report"),
	}))
	for _, name := range []string{"json", "text", "csv", "benchfmt", "report/index.html", "report/rate.svg"} {
		text, err := os.ReadFile(in(name))
		require.NoError(t, err)
		assert.NotEmpty(t, text, name)
	}
	assert.ErrorIs(t, bench(t.Context(), []string{"-from", in("missing")}), os.ErrNotExist)
	assert.Error(t, bench(t.Context(), []string{"-from", in("json"), "-report", in("text")}), "a file is no directory")
}

// README shows the picture of the results that are kept.
func TestPictureIsOfTheResults(t *testing.T) {
	r, err := report.Read("results/latest.json")
	require.NoError(t, err)
	picture, err := os.ReadFile("../docs/img/rate.svg")
	require.NoError(t, err)
	assert.Contains(t, string(picture), "commit "+r.Commit)
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	assert.Contains(t, string(readme), "commit "+r.Commit[:7])
}
