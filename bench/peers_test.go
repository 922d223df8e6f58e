package main

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func texts(cells []cell) (list []string) {
	for _, c := range cells {
		list = append(list, c.workText())
	}
	return list
}

func TestPeersWorks(t *testing.T) {
	assert.Equal(t, []string{
		"lat 64 among 0 idle peers", "lat 64 among 10 idle peers", "lat 64 among 63 idle peers", "lat 64 among 250 idle peers",
		"bw 64K among 0 idle peers", "bw 64K among 10 idle peers", "bw 64K among 63 idle peers", "bw 64K among 250 idle peers",
		"lat 64 by 11 peers", "lat 64 by 64 peers", "lat 64 by 251 peers",
		"bw 64K by 11 peers", "bw 64K by 64 peers", "bw 64K by 251 peers",
		"idle of 63 peers", "idle of 250 peers",
	}, texts(peersWorks([]int{250, 0, 63, 10, 63})))
	assert.Equal(t, []string{"lat 64 among 0 idle peers", "bw 64K among 0 idle peers"}, texts(peersWorks([]int{0})))
	last := func(counts ...int) string { w := texts(peersWorks(counts)); return w[len(w)-1] }
	assert.Equal(t, "idle of 5 peers", last(0, 5))
	assert.Equal(t, "bw 64K by 2 peers", last(1), "the second peer is the first that is added")
}

func TestPeersAreAModeOfOneMachine(t *testing.T) {
	p, err := parse([]string{"-modes", "peers,lat", "-sizes", "1K", "-peers", "0,3", "-providers", "shm,net", "-onecore"})
	require.NoError(t, err)
	assert.Equal(t, []string{
		"lat 1K on 1 core", "lat 64 among 0 idle peers on 1 core", "lat 64 among 3 idle peers on 1 core", "bw 64K among 0 idle peers on 1 core",
		"bw 64K among 3 idle peers on 1 core", "lat 64 by 4 peers on 1 core", "bw 64K by 4 peers on 1 core", "idle of 3 peers on 1 core",
	}, texts(p.works))
	var labels []string
	for _, c := range p.cells() {
		if c.Busy == 4 && c.Mode == modeLat {
			labels = append(labels, c.label())
		}
	}
	assert.Equal(t, []string{"tcp", "unix", "rdma/shm", "rdma/net"}, labels)

	p, err = parse([]string{"-modes", "lat", "-peers", "0"})
	require.NoError(t, err)
	assert.False(t, slices.ContainsFunc(p.works, func(c cell) bool { return c.peers() > 0 }), "nobody asked for them")

	for _, args := range [][]string{
		{"-modes", "peers", "-peers", ""}, {"-modes", "peers", "-peers", "-1"}, {"-modes", "peers", "-peers", "501"}, {"-modes", "peers,x"}, {"-modes", "peers", "-c", "x"},
	} {
		_, err := parse(args)
		assert.Error(t, err, "%v", args)
	}
	assert.Error(t, job{cell: cell{Mode: modePeers, Transport: transportTCP, Size: 1, Conns: 1, Inflight: 1}, Time: 1}.check(), "nor does -s take it")
}

func TestTheDocumentedRunOfPeersTakesMinutes(t *testing.T) {
	p, err := parse([]string{"-modes", "peers", "-rounds", "3", "-time", "300ms", "-providers", "shm,tcp;ofi_rxm,net"})
	require.NoError(t, err)
	assert.Less(t, p.estimate(), 11*time.Minute)
	assert.Greater(t, p.estimate(), time.Minute)
}

// One set of processes measures all of a transport's rows with peers. It has to grow
// while only the first process has been busy.
func TestPeersComeOnceForAllRowsOfATransport(t *testing.T) {
	p := plan{works: append([]cell{lat64}, peersWorks([]int{0, 3, 7})...), providers: []string{"net"}, rounds: 1}
	cells := p.cells()
	order := func(round int) (list []string) {
		for _, i := range sequence(cells, round) {
			list = append(list, cells[i].label()+" "+cells[i].workText())
		}
		return list
	}
	ofOne := []string{
		"lat 64 among 0 idle peers", "bw 64K among 0 idle peers", "lat 64 among 3 idle peers", "bw 64K among 3 idle peers",
		"idle of 7 peers", "lat 64 among 7 idle peers", "bw 64K among 7 idle peers",
		"lat 64 by 8 peers", "bw 64K by 8 peers", "lat 64 by 4 peers", "bw 64K by 4 peers",
	}
	with := func(label string) (list []string) {
		for _, text := range ofOne {
			list = append(list, label+" "+text)
		}
		return list
	}
	assert.Equal(t, slices.Concat([]string{"tcp lat 64", "unix lat 64", "rdma/net lat 64"}, with("tcp"), with("unix"), with("rdma/net")), order(0))
	assert.Equal(t, slices.Concat([]string{"unix lat 64", "rdma/net lat 64", "tcp lat 64"}, with("unix"), with("rdma/net"), with("tcp")), order(1))
}

func TestTheLastRowOfAProcessIsKnown(t *testing.T) {
	p := plan{works: peersWorks([]int{0, 3}), providers: []string{"net"}, rounds: 2, time: time.Millisecond}
	var lasts []string
	results, err := runAll(t.Context(), p, append(p.cells(), lat64.over(overTCP)), func(_ context.Context, j job) (sample, error) {
		if j.Last {
			lasts = append(lasts, j.label()+" "+j.workText())
		}
		if j.Transport == transportRDMA && j.Mode == modeBW && j.Busy > 1 {
			return sample{}, errors.New("broken")
		}
		return sample{}, nil
	})
	require.NoError(t, err)
	require.Len(t, results, len(p.cells())+1)
	assert.Equal(t, []string{
		"tcp bw 64K by 4 peers", "unix bw 64K by 4 peers", "rdma/net bw 64K by 4 peers", "tcp lat 64",
		"unix bw 64K by 4 peers", "rdma/net lat 64 by 4 peers", "tcp bw 64K by 4 peers", "tcp lat 64", // a row that has failed is left out
	}, lasts)
}

func TestTargetsOfPeersTakeTwoMinutes(t *testing.T) {
	p, err := parse([]string{"-targets", "-providers", "shm,tcp;ofi_rxm,net"})
	require.NoError(t, err)
	without := p
	without.targets = slices.DeleteFunc(slices.Clone(p.targets), func(t target) bool { return t.row.peers() > 0 })
	assert.Len(t, without.targets, len(p.targets)-6)
	assert.Less(t, p.estimate()-without.estimate(), 2*time.Minute)

	assert.Equal(t, 64, shmPeers, "targets name it")
}

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

func TestRowsBeyondShmsCapSayWhy(t *testing.T) {
	p := plan{works: peersWorks([]int{0, shmPeers - 1, shmPeers}), providers: []string{"shm", "net"}, rounds: 1, time: time.Millisecond}
	measured := 0
	results, err := runAll(t.Context(), p, p.cells(), func(_ context.Context, j job) (sample, error) {
		measured++
		assert.Empty(t, j.notPossible())
		return sample{Ops: 1, Elapsed: time.Second, P50: time.Second}, nil
	})
	require.NoError(t, err)
	var beyond []result
	for _, r := range results {
		assert.Empty(t, r.Error)
		if r.NotPossible != "" {
			beyond = append(beyond, r)
		}
	}
	require.Len(t, beyond, 4, "lat and bw, of one and of all")
	assert.Equal(t, len(results)-len(beyond), measured)
	for _, r := range beyond {
		assert.Equal(t, "rdma/shm", r.label())
		assert.Equal(t, shmPeers+1, r.peers())
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
