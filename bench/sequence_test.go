package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/bench/internal/load"
	"github.com/seed202c38ff/fabricnet/bench/internal/report"
	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

func texts(cases []workload.Case) (list []string) {
	for _, c := range cases {
		list = append(list, c.WorkText())
	}
	return list
}

func TestPeersAreAModeOfOneMachine(t *testing.T) {
	p, err := parse([]string{"-modes", "peers,lat", "-sizes", "1K", "-peers", "0,3", "-providers", "shm,net", "-onecore"})
	require.NoError(t, err)
	assert.Equal(t, []string{
		"lat 1K on 1 core", "lat 64 among 0 idle peers on 1 core", "lat 64 among 3 idle peers on 1 core", "bw 64K among 0 idle peers on 1 core",
		"bw 64K among 3 idle peers on 1 core", "lat 64 by 4 peers on 1 core", "bw 64K by 4 peers on 1 core", "idle of 3 peers on 1 core",
	}, texts(p.works))
	var labels []string
	for _, c := range p.cases() {
		if c.Busy == 4 && c.Mode == workload.ModeLat {
			labels = append(labels, c.Label())
		}
	}
	assert.Equal(t, []string{"tcp", "unix", "rdma/shm", "rdma/net"}, labels)

	p, err = parse([]string{"-modes", "lat", "-peers", "0"})
	require.NoError(t, err)
	assert.False(t, slices.ContainsFunc(p.works, func(c workload.Case) bool { return c.Peers() > 0 }), "nobody asked for them")

	for _, args := range [][]string{
		{"-modes", "peers", "-peers", ""}, {"-modes", "peers", "-peers", "-1"}, {"-modes", "peers", "-peers", "501"}, {"-modes", "peers,x"}, {"-modes", "peers", "-c", "x"},
	} {
		_, err := parse(args)
		assert.Error(t, err, "%v", args)
	}
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
	p := plan{works: append([]workload.Case{workload.Lat64}, workload.PeersWorks([]int{0, 3, 7})...), providers: []string{"net"}, rounds: 1}
	cases := p.cases()
	order := func(round int) (list []string) {
		for _, i := range sequence(cases, round) {
			list = append(list, cases[i].Label()+" "+cases[i].WorkText())
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
	p := plan{works: workload.PeersWorks([]int{0, 3}), providers: []string{"net"}, rounds: 2, time: time.Millisecond}
	var lasts []string
	results, err := runAll(t.Context(), p, append(p.cases(), workload.Lat64.Over(workload.TCP)), func(_ context.Context, j load.Job) (workload.Sample, error) {
		if j.Last {
			lasts = append(lasts, j.Label()+" "+j.WorkText())
		}
		if j.Transport == workload.TransportRDMA && j.Mode == workload.ModeBW && j.Busy > 1 {
			return workload.Sample{}, errors.New("broken")
		}
		return workload.Sample{}, nil
	})
	require.NoError(t, err)
	require.Len(t, results, len(p.cases())+1)
	assert.Equal(t, []string{
		"tcp bw 64K by 4 peers", "unix bw 64K by 4 peers", "rdma/net bw 64K by 4 peers", "tcp lat 64",
		"unix bw 64K by 4 peers", "rdma/net lat 64 by 4 peers", "tcp bw 64K by 4 peers", "tcp lat 64", // a row that has failed is left out
	}, lasts)
}

func TestTargetsOfPeersTakeTwoMinutes(t *testing.T) {
	p, err := parse([]string{"-targets", "-providers", "shm,tcp;ofi_rxm,net"})
	require.NoError(t, err)
	ofPeers := slices.DeleteFunc(report.Judge(p.targets, nil), func(v report.Verdict) bool { return !strings.Contains(v.Target, "peers") })
	assert.Len(t, ofPeers, 6)
	var takes time.Duration
	for _, c := range p.cases() {
		if c.Peers() > 0 {
			takes += time.Duration(p.rounds) * p.job(c).Takes()
		}
	}
	assert.Positive(t, takes)
	assert.Less(t, takes, 2*time.Minute)

	assert.Equal(t, 64, workload.ShmPeers, "targets name it")
}

func TestRowsBeyondShmsCapAreLeftOut(t *testing.T) {
	p := plan{works: workload.PeersWorks([]int{0, workload.ShmPeers - 1, workload.ShmPeers}), providers: []string{"shm", "net"}, rounds: 1, time: time.Millisecond}
	measured := 0
	results, err := runAll(t.Context(), p, p.cases(), func(_ context.Context, j load.Job) (workload.Sample, error) {
		measured++
		assert.Empty(t, j.Impossible())
		return workload.Sample{Ops: 1, Elapsed: time.Second, P50: time.Second}, nil
	})
	require.NoError(t, err)
	var beyond []report.Result
	for _, r := range results {
		assert.Empty(t, r.Error)
		if r.NotPossible != "" {
			beyond = append(beyond, r)
		}
	}
	require.Len(t, beyond, 4, "lat and bw, of one and of all")
	assert.Equal(t, len(results)-len(beyond), measured)
	for _, r := range beyond {
		assert.Equal(t, "rdma/shm", r.Label())
		assert.Equal(t, workload.ShmPeers+1, r.Peers())
		assert.Zero(t, r.OpsPerS)
	}
}
