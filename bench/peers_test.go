package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The ratio of a peer among idle ones to one alone is the median of the ratios within each
// round, whatever the ratio over all rounds is.
func TestToAloneIsByRounds(t *testing.T) {
	w := bw64K.among(3).over(overNet)
	round := func(ops, alone uint64) sample {
		return sample{Ops: ops, Elapsed: time.Second, P50: time.Second / time.Duration(ops),
			Alone: &sample{Ops: alone, Elapsed: 2 * time.Second, P50: time.Second / time.Duration(alone)}}
	}
	r := summarize(w, []sample{round(100, 400), round(90, 90), round(300, 500)})
	assert.InDelta(t, 1.2, r.toAlone(rate), 1e-9, "of 0.5, 2 and 1.2")
	assert.InDelta(t, 5./3, r.toAlone(p50), 1e-6, "of 4, 1 and 5/3")
	assert.Contains(t, notes(r), "to alone: time 1.67x, rate 1.20x")

	targets := []target{{what: "x", figure: rate, row: w, alone: true, must: 1.1}}
	assert.Equal(t, []verdict{{Target: "x", Measured: r.toAlone(rate), Least: 0.5, Most: 2, Must: ">= 1.1x", Goal: "-", Verdict: verdictMet, Unit: "x"}}, judge(targets, []result{r}))
	assert.Equal(t, verdictNotMeasured, judge(targets, []result{summarize(w, []sample{{Ops: 1, Elapsed: 1, P50: 1}})})[0].Verdict, "there was none alone")
}

// A row that is not possible is no failure and no loss, wherever it is shown.
func TestRowsBeyondShmsCapSayWhy(t *testing.T) {
	var results, beyond []result
	for _, v := range []carriage{overTCP, overShm} {
		for _, w := range peersWorks([]int{0, shmPeers - 1, shmPeers}) {
			r := summarize(w.over(v), []sample{{Ops: 1, Elapsed: time.Second, P50: time.Second}})
			if r.NotPossible = r.notPossible(); r.NotPossible != "" {
				r = result{cell: r.cell, NotPossible: r.NotPossible}
				beyond = append(beyond, r)
			}
			results = append(results, r)
		}
	}
	require.Len(t, beyond, 4, "lat and bw, of one and of all")
	for _, r := range beyond {
		assert.Equal(t, "rdma/shm", r.label())
		assert.Contains(t, row(r, result{P50us: 1, OpsPerS: 1}), "not possible: shm has at most 64 peers (Transport.MaxShmPeers)")
		assert.Equal(t, columns-2, strings.Count(row(r, result{P50us: 1, OpsPerS: 1}), "\t-"))
		page := newPageRow(r, result{P50us: 1, OpsPerS: 1, CPUusPer: 1})
		assert.NotEmpty(t, page.Notes)
		for _, figure := range page.Ratios {
			assert.Empty(t, figure.Class, "it is no loss")
		}
	}
	for _, b := range balances(results) {
		assert.Zero(t, b.Worse)
	}
	v := judge([]target{{what: "beyond", figure: p50, row: beyond[0].cell, must: 1}}, results)
	assert.Equal(t, verdictNotMeasured, v[0].Verdict)

	var b bytes.Buffer
	require.NoError(t, record{Rows: beyond}.writeBenchfmt(&b))
	assert.NotContains(t, b.String(), "Lat/")
}

func TestWhatIdlePeersTakeIsOfTheServerAndOfAClient(t *testing.T) {
	s := sample{
		Elapsed: time.Second,
		Server:  usage{CPU: 5 * time.Millisecond, Used: 10 * 4096, Mapped: 10 * 2048, Resident: 10 * 8192},
		Client:  usage{CPU: 50 * time.Millisecond, Used: 1024, Mapped: 512, Resident: 2048},
	}
	r := summarize(idlePeers(11).over(overShm), []sample{s})
	assert.InDelta(t, 0.5, r.CPUPercent, 1e-9)
	assert.Contains(t, row(r, result{}), "0.50% of a core; a peer takes 4.00 KiB used, 2.00 mapped, 8.00 KiB resident of the server, "+
		"and 1.00 KiB used, 0.50 mapped, 2.00 KiB resident of its own")
	s.Server.Used, s.Server.Mapped, s.Client.Used, s.Client.Mapped = 0, 0, 0, 0
	r = summarize(idlePeers(11).over(overTCP), []sample{s})
	assert.Contains(t, row(r, result{}), "a peer takes 8.00 KiB resident of the server, and 2.00 KiB resident of its own")
}

func TestChartsOfPeers(t *testing.T) {
	var rows []result
	for _, v := range []carriage{overTCP, overNet} {
		for i, w := range peersWorks([]int{0, 10, 250}) {
			rows = append(rows, result{cell: w.over(v), P50us: float64(i + 1), OpsPerS: float64(i + 1), GBPerS: float64(i + 1), CPUusPer: 1})
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
