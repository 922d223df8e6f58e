package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/bench/internal/load"
	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

func TestNumbers(t *testing.T) {
	for text, want := range map[string][]int{
		"64":        {64},
		"64, 4K,1M": {64, 4 << 10, 1 << 20},
		"2k,4m,":    {2 << 10, 4 << 20},
	} {
		got, err := numbers(text, 1, load.MaxSize)
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
	for _, text := range []string{"", ",", "0", "-1", "K", "1G", "33M", "9999999999999999999", "1.5K"} {
		_, err := numbers(text, 1, load.MaxSize)
		assert.Error(t, err, text)
	}
}

func TestCellsPutTransportsOfOneWorkTogether(t *testing.T) {
	p := plan{works: []workload.Case{{Mode: workload.ModeLat, Size: 1}, {Mode: workload.ModeConn, Size: 2}}, providers: []string{"shm", "tcp;ofi_rxm"}}
	var labels []string
	for _, c := range p.cases() {
		labels = append(labels, c.Mode+" "+c.Label())
	}
	assert.Equal(t, []string{
		"lat tcp", "lat unix", "lat rdma/shm", "lat rdma/tcp;ofi_rxm",
		"conn tcp", "conn unix", "conn rdma/shm", "conn rdma-noreuse/shm", "conn rdma/tcp;ofi_rxm", "conn rdma-noreuse/tcp;ofi_rxm",
	}, labels)
}

func TestEveryRoundStartsWithAnotherTransport(t *testing.T) {
	cases := plan{works: []workload.Case{{Mode: workload.ModeLat, Size: 1}, {Mode: workload.ModeConn}}, providers: []string{"shm"}}.cases()
	assert.Equal(t, []int{0, 1, 2, 3, 4, 5, 6}, sequence(cases, 0))
	assert.Equal(t, []int{1, 2, 0, 4, 5, 6, 3}, sequence(cases, 1))
	assert.Equal(t, []int{0, 1, 2, 6, 3, 4, 5}, sequence(cases, 3))
	assert.Empty(t, sequence(nil, 1))
}

func TestManyConnsAndIdleOnesGetMoreTime(t *testing.T) {
	p := plan{time: time.Second, rounds: 1}
	for c, want := range map[workload.Case]time.Duration{
		{Mode: workload.ModeBW, Conns: 10}:   time.Second,
		{Mode: workload.ModeBW, Conns: 1000}: 5 * time.Second,
		{Mode: workload.ModeIdle, Conns: 2}:  5 * time.Second,
	} {
		assert.Equal(t, want, p.job(c).Time, "%v", c)
		assert.Equal(t, want/4, p.job(c).WarmUp, "%v", c)
	}
}

func TestParse(t *testing.T) {
	p, err := parse([]string{"-demo", "-json", "out.json", "-text", "out.txt", "-providers", "shm"})
	require.NoError(t, err)
	assert.Equal(t, "out.json", p.jsonFile)
	assert.Equal(t, "out.txt", p.textFile)
	assert.Equal(t, demoWorks(), p.works)
	assert.Equal(t, []string{"shm"}, p.providers)
	assert.Less(t, plan{works: p.works, providers: make([]string, 3), rounds: p.rounds, time: p.time}.estimate(), 100*time.Second)

	p, err = parse([]string{"-targets", "-providers", "shm,tcp;ofi_rxm,net"})
	require.NoError(t, err)
	assert.GreaterOrEqual(t, p.rounds, 5)
	assert.Less(t, p.estimate(), 14*time.Minute)

	p, err = parse([]string{"-verbs", "-enforce", "-host", "10.9.0.1"})
	require.NoError(t, err)
	cases := p.cases()
	for _, v := range []workload.Transport{workload.TCP, workload.Rsockets, workload.Verbs} {
		assert.Contains(t, cases, workload.Lat64.Over(v))
	}

	p, err = parse([]string{"-modes", "rpc", "-sizes", "1K", "-inflight", "4", "-conns", "2", "-onecore", "-rounds", "7", "-time", "10ms"})
	require.NoError(t, err)
	assert.Equal(t, []workload.Case{{Mode: workload.ModeRPC, Size: 1 << 10, Inflight: 4, Conns: 2, OneCore: true}}, p.works)
	assert.Equal(t, 7, p.rounds)
	assert.Equal(t, 10*time.Millisecond, p.time)

	for _, args := range [][]string{
		{"-modes", "x"}, {"-sizes", "x"}, {"-inflight", "0"}, {"-conns", ""}, {"-rounds", "-1"}, {"-time", "-1s"}, {"extra"},
		{"-demo", "-targets"}, {"-targets", "-verbs"}, {"-enforce"}, {"-modes", "zc", "-sizes", "5000"},
	} {
		_, err := parse(args)
		assert.Error(t, err, "%v", args)
	}
}
