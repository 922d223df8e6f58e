package report

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// The ratio of a peer among idle ones to one alone is the median of the ratios within each
// round, whatever the ratio over all rounds is.
func TestToAloneIsByRounds(t *testing.T) {
	w := workload.BW64K.Among(3).Over(workload.Net)
	round := func(ops, alone uint64) workload.Sample {
		return workload.Sample{Ops: ops, Elapsed: time.Second, P50: time.Second / time.Duration(ops),
			Alone: &workload.Sample{Ops: alone, Elapsed: 2 * time.Second, P50: time.Second / time.Duration(alone)}}
	}
	r := Summarize(w, []workload.Sample{round(100, 400), round(90, 90), round(300, 500)})
	assert.InDelta(t, 1.2, r.toAlone(rate), 1e-9, "of 0.5, 2 and 1.2")
	assert.InDelta(t, 5./3, r.toAlone(p50), 1e-6, "of 4, 1 and 5/3")
	assert.Contains(t, notes(r), "to alone: time 1.67x, rate 1.20x")

	targets := []Target{{what: "x", figure: rate, row: w, alone: true, must: 1.1}}
	assert.Equal(t, []Verdict{{Target: "x", Measured: r.toAlone(rate), Least: 0.5, Most: 2, Must: ">= 1.1x", Goal: "-", Verdict: verdictMet, Unit: "x"}}, Judge(targets, []Result{r}))
	assert.Equal(t, verdictNotMeasured, Judge(targets, []Result{Summarize(w, []workload.Sample{{Ops: 1, Elapsed: 1, P50: 1}})})[0].Verdict, "there was none alone")
}

// A row that is not possible is no failure and no loss, wherever it is shown.
func TestRowsBeyondShmsCapSayWhy(t *testing.T) {
	var results, beyond []Result
	for _, v := range []workload.Transport{workload.TCP, workload.Shm} {
		for _, w := range workload.PeersWorks([]int{0, workload.ShmPeers - 1, workload.ShmPeers}) {
			r := Summarize(w.Over(v), []workload.Sample{{Ops: 1, Elapsed: time.Second, P50: time.Second}})
			if r.NotPossible = r.Impossible(); r.NotPossible != "" {
				r = Result{Case: r.Case, NotPossible: r.NotPossible}
				beyond = append(beyond, r)
			}
			results = append(results, r)
		}
	}
	require.Len(t, beyond, 4, "lat and bw, of one and of all")
	for _, r := range beyond {
		assert.Equal(t, "rdma/shm", r.Label())
		assert.Contains(t, row(r, Result{P50us: 1, OpsPerS: 1}), "not possible: shm has at most 64 peers (Transport.MaxShmPeers)")
		assert.Equal(t, columns-2, strings.Count(row(r, Result{P50us: 1, OpsPerS: 1}), "\t-"))
		page := newPageRow(r, Result{P50us: 1, OpsPerS: 1, CPUusPer: 1})
		assert.NotEmpty(t, page.Notes)
		for _, figure := range page.Ratios {
			assert.Empty(t, figure.Class, "it is no loss")
		}
	}
	for _, b := range balances(results) {
		assert.Zero(t, b.Worse)
	}
	v := Judge([]Target{{what: "beyond", figure: p50, row: beyond[0].Case, must: 1}}, results)
	assert.Equal(t, verdictNotMeasured, v[0].Verdict)

	var b bytes.Buffer
	require.NoError(t, Record{Rows: beyond}.WriteBenchfmt(&b))
	assert.NotContains(t, b.String(), "Lat/")
}

func TestWhatIdlePeersTakeIsOfTheServerAndOfAClient(t *testing.T) {
	s := workload.Sample{
		Elapsed: time.Second,
		Server:  workload.Usage{CPU: 5 * time.Millisecond, Used: 10 * 4096, Mapped: 10 * 2048, Resident: 10 * 8192},
		Client:  workload.Usage{CPU: 50 * time.Millisecond, Used: 1024, Mapped: 512, Resident: 2048},
	}
	r := Summarize(workload.IdlePeers(11).Over(workload.Shm), []workload.Sample{s})
	assert.InDelta(t, 0.5, r.CPUPercent, 1e-9)
	assert.Contains(t, row(r, Result{}), "0.50% of a core; a peer takes 4.00 KiB used, 2.00 mapped, 8.00 KiB resident of the server, "+
		"and 1.00 KiB used, 0.50 mapped, 2.00 KiB resident of its own")
	s.Server.Used, s.Server.Mapped, s.Client.Used, s.Client.Mapped = 0, 0, 0, 0
	r = Summarize(workload.IdlePeers(11).Over(workload.TCP), []workload.Sample{s})
	assert.Contains(t, row(r, Result{}), "a peer takes 8.00 KiB resident of the server, and 2.00 KiB resident of its own")
}

func TestChartsOfPeers(t *testing.T) {
	var rows []Result
	for _, v := range []workload.Transport{workload.TCP, workload.Net} {
		for i, w := range workload.PeersWorks([]int{0, 10, 250}) {
			rows = append(rows, Result{Case: w.Over(v), P50us: float64(i + 1), OpsPerS: float64(i + 1), GBPerS: float64(i + 1), CPUusPer: 1})
		}
	}
	var names []string
	for _, c := range charts(rows) {
		names = append(names, c.name)
		if c.name == "peers-bw-64K" {
			assert.Equal(t, []float64{1, 11, 251}, []float64{c.lines[0].points[0].x, c.lines[0].points[1].x, c.lines[0].points[2].x})
		}
	}
	assert.Equal(t, []string{"rate", "latency", "cpu", "idle-peers-lat-64", "idle-peers-bw-64K", "peers-lat-64", "peers-bw-64K"}, names)
}
