package report

import (
	"bytes"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// oldRecord is what -json wrote before it had p90, p99.9, samples and units.
const oldRecord = `{"commit": "55a4c5f8d2d0", "command": "bench -targets", "machine": "A CPU (amd64), 2 CPUs, linux 6.18, go1.26, libfabric 1.17",
"date": "2026-11-22T08:30:15Z", "absent": "not on this machine: rdma/cxi", "rounds": 5, "rows": [
{"mode": "lat", "transport": "tcp", "provider": "", "size": 64, "inflight": 1, "conns": 1, "one_core": false, "p50_us": 22.592, "p50_best_us": 18.368,
"p99_us": 45.184, "ops_per_s": 41274.47, "gb_per_s": 0.00264, "cpu_us_per_op": 31.7097, "cpu_s_per_gb": 495.46, "allocs_per_op": 0.00047, "rounds": 5},
{"mode": "lat", "transport": "rdma", "provider": "shm", "size": 64, "inflight": 1, "conns": 1, "one_core": false, "p50_us": 2.104, "p50_best_us": 2.056,
"p99_us": 4.04, "ops_per_s": 384991.96, "gb_per_s": 0.0246, "cpu_us_per_op": 5.0378, "cpu_s_per_gb": 78.7159, "allocs_per_op": 5.7e-05, "rounds": 5}],
"verdicts": [{"target": "64 B round trip, p50, to TCP's", "measured": 0.0931, "must": "<= 0.33x", "goal": "-", "verdict": "met"},
{"target": "1000 idle conns, registered memory a conn", "measured": 0.5, "must": "-", "goal": "<= 4 KiB", "verdict": "goal met"}]}`

func writeOldRecord(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "old.json")
	require.NoError(t, os.WriteFile(file, []byte(oldRecord), 0o600))
	return file
}

// sweepResults covers several sizes and numbers of conns, wins and losses, a failed
// row and an idle one.
func sweepResults() (rows []Result) {
	for _, v := range []workload.Transport{workload.TCP, workload.Shm, workload.Net} {
		for _, size := range []int{64, 4096, 1 << 20} {
			for _, mode := range []string{workload.ModeLat, workload.ModeBW, workload.ModeRPC, workload.ModeZC} {
				p50 := float64(len(rows) + 3)
				rows = append(rows, Result{
					Case:  workload.Case{Mode: mode, Size: size, Inflight: 1, Conns: 1}.Over(v),
					P50us: p50, P90us: 1.5 * p50, P99us: 2 * p50, P999us: 7 * p50, OpsPerS: 1e6 / p50,
					GBPerS: float64(size) / p50 / 1e3, CPUusPer: 1.25 * p50, CPUsPerGB: 1, Mallocs: 0.125, Rounds: 3,
				})
			}
		}
	}
	for _, n := range []int{10, 100} {
		rows = append(rows, Result{Case: bw64KOn(n).Over(workload.TCP), P50us: 8, OpsPerS: 100, GBPerS: 3.25, CPUusPer: 1, Fairness: 0.987, Rounds: 3})
	}
	return append(rows,
		Result{Case: idle1000.Over(workload.Shm), CPUPercent: 0.12, Registered: 512, Resident: 7475, Rounds: 3},
		Result{Case: workload.Lat64.Over(workload.Transport{Name: workload.TransportRDMA, Provider: "efa"}), Error: "no such <device>"})
}

func sweepRecord() Record {
	return Record{
		Commit: "abc", Command: "bench -targets", Machine: "a machine", Date: time.Date(2020, 2, 3, 4, 5, 6, 0, time.UTC), Rounds: 3,
		Absent: "not on this machine: rdma/cxi", Rows: sweepResults(), Verdicts: Judge(LoopbackTargets, sweepResults()),
	}
}

// parsePage writes the report and returns its page, parsed, and its text. Every
// file must be well-formed and refer to nothing outside.
func parsePage(t *testing.T, r Record) (doc *html.Node, raw, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "report")
	require.NoError(t, WriteReport(dir, r))
	text, err := os.ReadFile(filepath.Join(dir, "index.html"))
	require.NoError(t, err)
	doc, err = html.Parse(bytes.NewReader(text))
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(dir, "*.svg"))
	require.NoError(t, err)
	for _, name := range files {
		drawing, err := os.ReadFile(name)
		require.NoError(t, err)
		for d := xml.NewDecoder(bytes.NewReader(drawing)); ; {
			if _, err = d.Token(); err != nil {
				break
			}
		}
		require.ErrorIs(t, err, io.EOF, name)
		assert.NotContains(t, strings.Replace(string(drawing), namespace, "", 1), "http", name)
	}
	return doc, string(text), dir
}

// find returns all elements below n that have the given name.
func find(n *html.Node, name string) (list []*html.Node) {
	for d := range n.Descendants() {
		if d.Type == html.ElementNode && d.Data == name {
			list = append(list, d)
		}
	}
	return list
}

func textOf(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			b.WriteString(d.Data + " ")
		}
	}
	return oneLine(b.String())
}

func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func TestPageIsSelfContained(t *testing.T) {
	doc, raw, dir := parsePage(t, sweepRecord())
	for _, outside := range []string{"http:", "https:", "//", "@import", "url(", "src=", "href="} {
		assert.NotContains(t, raw, outside)
	}
	for _, name := range []string{"script", "link", "img", "iframe", "object"} {
		assert.Empty(t, find(doc, name), name)
	}
	drawings := find(doc, "svg")
	require.NotEmpty(t, drawings)
	for _, d := range drawings {
		assert.Equal(t, "img", attribute(d, "role"))
		assert.NotEmpty(t, attribute(d, "aria-label"))
		assert.Empty(t, attribute(d, "width"), "it is as wide as there is room")
		assert.NotContains(t, attribute(d, "style"), "#000000")
	}
	assert.NotContains(t, raw, "stroke:#000000", "black is not to be seen on black")
	files, err := filepath.Glob(filepath.Join(dir, "*.svg"))
	require.NoError(t, err)
	assert.Len(t, files, len(drawings), "each chart has a file, and no two the same")
}

func TestPageHasEveryRow(t *testing.T) {
	r := sweepRecord()
	doc, _, _ := parsePage(t, r)
	all := textOf(doc)
	for _, want := range []string{r.Commit, r.Command, r.Machine, r.Absent, "3 February 2020, 04:05 UTC"} {
		assert.Contains(t, all, want)
	}
	var rows []string
	for _, tr := range find(doc, "tr") {
		rows = append(rows, textOf(tr))
	}
	contains := func(parts ...string) {
		t.Helper()
		assert.Contains(t, strings.Join(rows, "\n"), strings.Join(parts, " "))
	}
	for _, row := range r.Rows {
		switch {
		case row.Error != "":
			contains(row.Label(), "FAILED:", row.Error)
		case row.Mode == workload.ModeIdle:
			contains(row.Label(), "- - - - - - - - - - -", "0.12% of a core; a conn has 0.50 KiB registered, 7.30 KiB resident")
		default:
			contains(row.Label(), digits(row.P50us), cmpDash(row.P90us), cmpDash(row.P99us), cmpDash(row.P999us),
				digits(row.OpsPerS), digits(row.GBPerS), digits(row.CPUusPer))
		}
	}
	for _, v := range r.Verdicts {
		contains(v.Target, v.figure(), v.Must, v.Goal, v.Verdict)
	}
}

func cmpDash(v float64) string {
	if v == 0 {
		return "-"
	}
	return digits(v)
}

func TestPageShowsLossesAsWellAsWins(t *testing.T) {
	rows := results()[:3] // unix is slower than TCP, and shm faster
	doc, _, _ := parsePage(t, Record{Rows: rows})
	classes := make(map[string]string)
	for _, td := range find(doc, "td") {
		if class := attribute(td, "class"); class == better || class == worse {
			classes[textOf(td)] = class
		}
	}
	assert.Equal(t, map[string]string{"1.20x": worse, "0.83x": worse, "0.40x": better, "2.50x": better}, classes)
	assert.Equal(t, []balance{
		{Label: "unix", Figure: "rate", Worse: 1, Losses: "lat 64 (0.83x)"},
		{Label: "unix", Figure: "CPU", Worse: 1, Losses: "lat 64 (1.20x)"},
		{Label: "rdma/shm", Figure: "rate", Better: 1},
		{Label: "rdma/shm", Figure: "CPU", Better: 1},
	}, balances(rows))
	c := rateChart(rows)
	assert.Equal(t, []string{"lat 64"}, c.rows)
	assert.Equal(t, []string{"unix", "rdma/shm"}, c.key().labels)
	assert.Contains(t, c.svg(), ">0.83x<")
	assert.Contains(t, c.svg(), ">2.50x<")
}

func TestCompare(t *testing.T) {
	for _, test := range []struct {
		v, base float64
		higher  bool
		class   string
	}{
		{1, 2, false, better}, {1, 2, true, worse}, {2, 1, false, worse}, {2, 1, true, better},
		{1.04, 1, true, level}, {0.96, 1, false, level}, {1.06, 1, true, better}, {1, 0, true, ""},
	} {
		assert.Equal(t, test.class, compare(test.v, test.base, test.higher).Class, "%+v", test)
	}
}

// A record may come from anybody and contain anything: none of it may become markup.
func TestHostileRecord(t *testing.T) {
	const bad = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)></svg>\x01$1{{.}}../"
	r := Record{Commit: bad, Command: bad, Machine: bad, Server: bad, Absent: bad, Verdicts: []Verdict{{Target: bad, Measured: 1, Must: bad, Goal: bad, Verdict: bad, Unit: bad}}}
	for i, v := range []float64{1, -1, 0, 1e300, 5e-324, 1e-14} {
		for _, size := range []int{64, -1, 1 << 62} {
			r.Rows = append(r.Rows, Result{
				Case:  workload.Case{Mode: bad, Transport: bad, Provider: bad, Size: size, Conns: i, Inflight: -i},
				P50us: v, P90us: -v, P99us: v / 2, P999us: 3 * v, OpsPerS: v, GBPerS: v, CPUusPer: v, Fairness: v,
			}, Result{Case: workload.Case{Mode: workload.ModeBW, Transport: workload.TransportTCP, Size: size, Conns: i}, OpsPerS: v, GBPerS: v, CPUusPer: v},
				Result{Case: workload.Case{Mode: workload.ModeRPC, Transport: bad, Size: size, Conns: 1}, P50us: v, P99us: 1 / max(v, 1e-300), OpsPerS: v, GBPerS: v})
		}
	}
	r.Rows = append(r.Rows, Result{Case: workload.Case{Mode: bad}, Error: bad}, Result{})
	doc, _, _ := parsePage(t, r)
	for _, name := range []string{"script", "img"} {
		assert.Empty(t, find(doc, name))
	}
	for n := range doc.Descendants() {
		for _, a := range n.Attr {
			assert.False(t, strings.HasPrefix(a.Key, "on"), a.Key)
		}
	}
	assert.Contains(t, textOf(doc), "<script>alert(1)</script>")

	var b bytes.Buffer
	require.NoError(t, r.WriteCSV(&b))
	require.NoError(t, r.WriteBenchfmt(&b))
}

func TestChartsOfASweep(t *testing.T) {
	var names []string
	for _, c := range charts(sweepResults()) {
		names = append(names, c.name)
		assert.NotContains(t, c.key().labels, "rdma/efa", "it has failed")
	}
	assert.Equal(t, []string{
		"rate", "latency", "cpu",
		"latency-lat", "ratio-lat", "throughput-bw", "ratio-bw", "latency-rpc", "throughput-rpc", "ratio-rpc", "throughput-zc", "ratio-zc",
		"conns-bw-64K",
	}, names)
	assert.Empty(t, charts(nil))
	assert.Empty(t, charts([]Result{{Case: workload.Lat64, Error: "no"}}))
}

func TestManyDotsAreSplitByMode(t *testing.T) {
	var rows []Result
	for size := 1; size <= maxDots+1; size++ {
		rows = append(rows, Result{Case: workload.Case{Mode: workload.ModeLat, Transport: workload.TransportTCP, Size: size}, P50us: 1, CPUusPer: 1})
	}
	rows = append(rows, Result{Case: workload.Case{Mode: workload.ModeConn, Transport: workload.TransportTCP}, P50us: 1, CPUusPer: 1})
	var names []string
	for _, c := range charts(rows) {
		if len(c.dots) > 0 {
			names = append(names, c.name)
		}
	}
	assert.Equal(t, []string{"latency-by-lat", "latency-by-conn", "cpu-by-lat", "cpu-by-conn"}, names)
}

func TestLinesAreInTheOrderOfSizes(t *testing.T) {
	row := func(v workload.Transport, size int, gb float64) Result {
		return Result{Case: workload.Case{Mode: workload.ModeBW, Size: size, Conns: 1, Inflight: 1}.Over(v), GBPerS: gb, OpsPerS: 2 * gb}
	}
	all := charts([]Result{row(workload.TCP, 4096, 2), row(workload.Shm, 4096, 6), row(workload.TCP, 64, 1), row(workload.Shm, 64, 5)})
	require.Len(t, all, 3)
	assert.Equal(t, []line{
		{label: "tcp", points: []point{{64, 1}, {4096, 2}}},
		{label: "rdma/shm", points: []point{{64, 5}, {4096, 6}}},
	}, all[1].lines)
	assert.Equal(t, []line{{label: "rdma/shm", points: []point{{64, 5}, {4096, 3}}}}, all[2].lines)
	assert.Equal(t, "64 4K", all[1].measuredAt([]float64{4096, 64, 64})[0].Label+" "+all[1].measuredAt([]float64{4096, 64, 64})[1].Label)
}

func TestLogTicks(t *testing.T) {
	labels := func(low, high float64) (list []string) {
		for _, tick := range logTicks(low, high, plainNumber) {
			if tick.Label != "" {
				list = append(list, tick.Label)
			}
		}
		return list
	}
	assert.Equal(t, []string{"0.5", "1", "2", "5", "10", "20"}, labels(0.4, 30))
	assert.Equal(t, []string{"0.01", "0.1", "1", "10", "100"}, labels(0.009, 300))
	assert.Less(t, len(labels(1e-15, 1e15)), 15)
}
