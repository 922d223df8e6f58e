package report

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

func TestMedian(t *testing.T) {
	assert.Zero(t, median(nil))
	assert.InDelta(t, 3, median([]float64{3}), 0)
	assert.InDelta(t, 2, median([]float64{9, 2, 1}), 0)
	assert.InDelta(t, 2.5, median([]float64{9, 2, 1, 3}), 0)
}

func TestSummarizeTakesMediansOfEachFigure(t *testing.T) {
	round := func(ops uint64, p50 time.Duration) workload.Sample {
		return workload.Sample{
			Ops: ops, Elapsed: time.Second, P50: p50, P90: 3 * p50 / 2, P99: 2 * p50, P999: 5 * p50, Fairness: 0.5,
			Client: workload.Usage{CPU: 700 * time.Microsecond, Mallocs: ops}, Server: workload.Usage{CPU: 300 * time.Microsecond, Mallocs: ops},
		}
	}
	c := workload.Case{Mode: workload.ModeLat, Transport: "tcp", Size: 1000, Inflight: 1, Conns: 1}
	r := Summarize(c, []workload.Sample{round(1000, 9*time.Microsecond), round(500, time.Microsecond), round(2000, 3*time.Microsecond)})
	assert.Equal(t, c, r.Case)
	assert.Equal(t, 3, r.Rounds)
	assert.InDelta(t, 3, r.P50us, 1e-9)
	assert.InDelta(t, 1, r.P50Best, 1e-9)
	assert.InDelta(t, 2, r.Mallocs, 1e-9)
	assert.Zero(t, r.Fairness, "one conn shares with nobody")
	assert.InDelta(t, 4.5, r.P90us, 1e-9)
	assert.InDelta(t, 6, r.P99us, 1e-9)
	assert.InDelta(t, 15, r.P999us, 1e-9)
	assert.Len(t, r.Samples, 3)
	assert.InDelta(t, 1000, r.OpsPerS, 1e-9)
	assert.InDelta(t, 0.001, r.GBPerS, 1e-12)
	assert.InDelta(t, 1, r.CPUusPer, 1e-9)
	assert.InDelta(t, 1, r.CPUsPerGB, 1e-9)
}

// results returns rows for TCP at 10 us, shm at 4 us and a provider that failed.
func results() []Result {
	of := func(transport, provider string, p50 float64) Result {
		return Result{
			Case:  workload.Case{Mode: workload.ModeLat, Transport: transport, Provider: provider, Size: 64, Inflight: 1, Conns: 1},
			P50us: p50, P99us: 2 * p50, OpsPerS: 1e6 / p50, GBPerS: 64e-3 / p50, CPUusPer: 3 * p50, CPUsPerGB: 1, Rounds: 3,
		}
	}
	failed := Result{Case: workload.Case{Mode: workload.ModeLat, Transport: "rdma", Provider: "net", Size: 64, Inflight: 1, Conns: 1}, Error: "no such provider"}
	return []Result{of("tcp", "", 10), of("unix", "", 12), of("rdma", "shm", 4), failed}
}

func TestTableComparesEveryRowWithTCP(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, writeTable(&out, results()))
	lines := strings.Split(out.String(), "\n")
	assert.Len(t, strings.Fields("work transport p50us p99us ops/s GB/s cpuus/op time rate cpu rounds tobest"), columns)
	assert.Equal(t, strings.Fields("lat 64 tcp 10.0 20.0 100000 0.0064 30.0 1.00x 1.00x 1.00x - -"), strings.Fields(lines[1]))
	assert.Equal(t, strings.Fields("lat 64 unix 12.0 24.0 83333 0.0053 36.0 1.20x 0.83x 1.20x - -"), strings.Fields(lines[2]), "a loss is printed too")
	assert.Equal(t, strings.Fields("lat 64 rdma/shm 4.00 8.00 250000 0.016 12.0 0.40x 2.50x 0.40x - -"), strings.Fields(lines[3]))
	assert.Equal(t, strings.Fields("lat 64 rdma/net failed - - - - - - - - -"), strings.Fields(lines[4]))
	assert.Contains(t, out.String(), "FAILED lat 64, rdma/net, 1 conns, 1 in flight:\n  no such provider\n")
}

func TestTableWithoutTCPHasNoRatios(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, writeTable(&out, results()[2:3]))
	assert.Equal(t, strings.Fields("lat 64 rdma/shm 4.00 8.00 250000 0.016 12.0 - - - - -"), strings.Fields(strings.Split(out.String(), "\n")[1]))
}

// TestLegendOfRows: a table explains the rows that it has, and no others.
func TestLegendOfRows(t *testing.T) {
	text := strings.Join(legend(results()), "\n")
	assert.Contains(t, text, "Medians over the rounds.")
	for _, other := range []string{"A conn is a dial", "zc is a", "rsockets", "Peers are"} {
		assert.NotContains(t, text, other)
	}
	dials := Result{Case: workload.Case{Mode: workload.ModeConn, Transport: "tcp", Inflight: 1, Conns: 1}}
	assert.Contains(t, strings.Join(legend(append(results(), dials)), "\n"), "A conn is a dial")
}

// TestBusyHost: figures that other programs may have disturbed are said to be so.
func TestBusyHost(t *testing.T) {
	for percent, says := range map[float64]bool{0: false, 9: false, 10: true, 83: true} {
		var out bytes.Buffer
		require.NoError(t, Record{OthersCPU: percent}.WriteHeader(&out))
		assert.Equal(t, says, strings.Contains(out.String(), "this host is busy"), percent)
	}
}

func TestJSONHasTheDocumentedFields(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, Record{Commit: "abc", Command: "bench -x", Machine: "m", Rounds: 3, Rows: results()}.WriteJSON(&out))
	var saved map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &saved))
	assert.Equal(t, "abc", saved["commit"])
	assert.Equal(t, "bench -x", saved["command"])
	assert.Equal(t, "m", saved["machine"])
	assert.Contains(t, saved, "date")
	assert.InDelta(t, 3, saved["rounds"], 0)
	assert.NotContains(t, saved, "verdicts", "without targets")

	var rows []map[string]any
	for _, row := range saved["rows"].([]any) {
		rows = append(rows, row.(map[string]any))
	}
	require.Len(t, rows, 4)
	want := []string{"mode", "transport", "provider", "size", "inflight", "conns", "one_core", "busy_host", "p50_us", "p50_best_us", "p90_us", "p99_us", "p999_us", "p99_pooled_us",
		"ops_per_s", "gb_per_s", "cpu_us_per_op", "cpu_s_per_gb", "allocs_per_op", "rounds"}
	for _, row := range rows[:3] {
		var names []string
		for name := range row {
			names = append(names, name)
		}
		assert.ElementsMatch(t, want, names)
	}
	assert.Equal(t, "no such provider", rows[3]["error"])
}

func TestSummarizeIdleTakesTheProcessThatUsesMore(t *testing.T) {
	s := workload.Sample{
		Elapsed: time.Second,
		Client:  workload.Usage{CPU: 2 * time.Millisecond, Registered: 3000, Resident: 9000},
		Server:  workload.Usage{CPU: 5 * time.Millisecond, Registered: 2000, Resident: 12000},
	}
	r := Summarize(workload.Case{Mode: workload.ModeIdle, Transport: "rdma", Provider: "shm", Size: 1, Inflight: 1, Conns: 11}, []workload.Sample{s})
	assert.InDelta(t, 0.5, r.CPUPercent, 1e-9)
	assert.InDelta(t, 300, r.Registered, 1e-9)
	assert.InDelta(t, 1200, r.Resident, 1e-9)

	var out bytes.Buffer
	require.NoError(t, writeTable(&out, []Result{r}))
	assert.Equal(t, strings.Fields("idle on 11 conns rdma/shm - - - - - - - - - - 0.50% of a core; a conn has 0.29 KiB registered, 1.17 KiB resident"),
		strings.Fields(strings.Split(out.String(), "\n")[1]))
}

func TestSeveralStreamsHaveFairness(t *testing.T) {
	r := Summarize(workload.Case{Mode: workload.ModeBW, Transport: "tcp", Size: 1, Inflight: 1, Conns: 2},
		[]workload.Sample{{Fairness: 0.9, Elapsed: 1}, {Fairness: 0.7, Elapsed: 1}, {Fairness: 0.8, Elapsed: 1}})
	assert.InDelta(t, 0.8, r.Fairness, 1e-9)
	assert.Contains(t, row(r, Result{}), "fairness 0.800")
}

func TestTimesOfFarMoreHasFewDigits(t *testing.T) {
	assert.Equal(t, "0.25x", times(1, 4))
	assert.Equal(t, "12.50x", times(25, 2))
	assert.Equal(t, "1235x", times(1234.6, 1))
	assert.Equal(t, "-", times(1, 0))
}
