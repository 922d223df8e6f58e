package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestJudge(t *testing.T) {
	tcp := result{cell: lat64.over(overTCP), P50us: 10, P50Best: 8, OpsPerS: 100}
	shm := result{cell: lat64.over(overShm), P50us: 4, P50Best: 3, OpsPerS: 250}
	broken := result{cell: lat64.over(overNet), Error: "no"}
	rows := []result{tcp, shm, broken}
	for name, test := range map[string]struct {
		target   target
		measured float64
		verdict  string
	}{
		"less, goal":         {target{figure: p50, row: shm.cell, than: tcp.cell, must: 0.5, goal: 0.4}, 0.4, verdictGoal},
		"less, must":         {target{figure: p50, row: shm.cell, than: tcp.cell, must: 0.4, goal: 0.3}, 0.4, verdictMet},
		"less, neither":      {target{figure: p50, row: shm.cell, than: tcp.cell, must: 0.39, goal: 0.3}, 0.4, verdictMissed},
		"more, goal":         {target{figure: rate, row: shm.cell, than: tcp.cell, must: 2, goal: 2.5}, 2.5, verdictGoal},
		"more, must":         {target{figure: rate, row: shm.cell, than: tcp.cell, must: 2.5, goal: 3}, 2.5, verdictMet},
		"more, neither":      {target{figure: rate, row: shm.cell, than: tcp.cell, must: 2.6, goal: 3}, 2.5, verdictMissed},
		"must without goal":  {target{figure: p50, row: shm.cell, than: tcp.cell, must: 1}, 0.4, verdictMet},
		"goal without must":  {target{figure: rate, row: shm.cell, than: tcp.cell, goal: 3}, 2.5, verdictGoalMissed},
		"another figure":     {target{figure: p50, row: shm.cell, than: tcp.cell, other: p50Best, must: 0.5}, 0.5, verdictMet},
		"not compared":       {target{figure: p50, row: shm.cell, must: 4}, 4, verdictMet},
		"not compared, zero": {target{figure: fairness, row: shm.cell, must: 0.9}, 0, verdictMissed},
		"failed":             {target{figure: p50, row: broken.cell, must: 4}, 0, verdictNotMeasured},
		"nothing to compare": {target{figure: p50, row: shm.cell, than: broken.cell, must: 4}, 0, verdictNotMeasured},
		"absent":             {target{figure: p50, row: lat64.over(overUnix), than: tcp.cell, must: 4}, 0, verdictNotMeasured},
	} {
		got := judge([]target{test.target}, rows)
		require.Len(t, got, 1, name)
		assert.Equal(t, test.verdict, got[0].Verdict, name)
		assert.InDelta(t, test.measured, got[0].Measured, 1e-9, name)
	}
}

func TestEnforce(t *testing.T) {
	row := result{cell: lat64.over(overShm), P50us: 4}
	met := target{what: "fast", figure: p50, row: row.cell, must: 5}
	missed, absent := met, met
	missed.what, missed.must = "faster", 3
	absent.row = lat64.over(overNet)
	goal := target{what: "wish", figure: p50, row: row.cell, goal: 1}
	assert.NoError(t, enforce(judge([]target{met, goal}, []result{row})))
	assert.EqualError(t, enforce(judge([]target{met, missed}, []result{row})), "MISSED: faster (4.00, must be <= 3)")
	assert.ErrorContains(t, enforce(judge([]target{absent}, []result{row})), verdictNotMeasured)
}

func TestTargetsAreConsistent(t *testing.T) {
	names := make(map[string]bool)
	for _, target := range slices.Concat(loopbackTargets, verbsTargets) {
		assert.False(t, names[target.what], "twice: %s", target.what)
		names[target.what] = true
		assert.True(t, target.must != 0 || target.goal != 0, target.what)
		if target.must != 0 && target.goal != 0 {
			assert.True(t, target.meets(target.goal, target.must), "the goal of %q is the easier bound", target.what)
		}
	}
}

func TestTargetCellsAreWhatIsNeededAndOffered(t *testing.T) {
	all := targetCells(loopbackTargets, []string{"shm", "net", "tcp;ofi_rxm"})
	for i, c := range all {
		assert.NotContains(t, all[:i], c, "twice")
		w := c.work()
		assert.True(t, i == 0 || all[i-1].work() == w || !slices.ContainsFunc(all[:i], func(c cell) bool { return c.work() == w }),
			"%v stands apart from its like", c)
	}
	for _, target := range loopbackTargets {
		assert.Contains(t, all, target.row)
		if target.compares() {
			assert.Contains(t, all, target.than)
		}
	}
	labels := func(work cell) (labels []string) {
		for _, c := range all {
			if c.work() == work {
				labels = append(labels, c.label())
			}
		}
		return labels
	}
	assert.Equal(t, []string{"tcp", "unix", "rdma/shm", "rdma/tcp;ofi_rxm", "rdma/net", "rdma-unmapped/shm"}, labels(bw64K))
	assert.Equal(t, []string{"tcp", "unix", "rdma/shm"}, labels(zc1M))

	for _, c := range targetCells(loopbackTargets, []string{"net"}) {
		assert.Contains(t, []string{"", "net"}, c.Provider)
	}
}

func TestVerdictsArePrinted(t *testing.T) {
	tcp := result{cell: lat64.over(overTCP), P50us: 10}
	shm := result{cell: lat64.over(overShm), P50us: 4}
	idle := result{cell: idle1000.over(overShm), CPUPercent: 0.15}
	var out bytes.Buffer
	require.NoError(t, writeVerdicts(&out, judge([]target{
		{what: "round trip", figure: p50, row: shm.cell, than: tcp.cell, must: 0.33, goal: 0.27},
		{what: "idle", figure: cpuPercent, row: idle.cell, must: 1, goal: 0.2},
		{what: "stream", figure: rate, row: bw64K.over(overNet), than: bw64K.over(overTCP), must: 1},
	}, []result{tcp, shm, idle})))
	lines := strings.Split(out.String(), "\n")
	assert.Equal(t, strings.Fields("target measured rounds to best must goal verdict"), strings.Fields(lines[0]))
	assert.Equal(t, strings.Fields("round trip 0.40x - - <= 0.33x <= 0.27x MISSED"), strings.Fields(lines[1]))
	assert.Equal(t, strings.Fields("idle 0.15% - - <= 1% <= 0.2% goal met"), strings.Fields(lines[2]))
	assert.Equal(t, strings.Fields("stream - - - >= 1x - not measured"), strings.Fields(lines[3]))
}

// The range covers the ratios within each round; the ratio to the best round uses the
// best round of the transport compared with.
func TestRangesAreByRounds(t *testing.T) {
	round := func(ops uint64, p50 time.Duration) sample { return sample{Ops: ops, Elapsed: time.Second, P50: p50} }
	tcp := summarize(bw64K.over(overTCP), []sample{round(10, 8), round(40, 2), round(20, 4)})
	shm := summarize(bw64K.over(overShm), []sample{round(40, 2), round(80, 1), round(100, 1)})
	v := judge([]target{
		{what: "rate", figure: rate, row: shm.cell, than: tcp.cell, must: 5},
		{what: "time", figure: p50, row: shm.cell, than: tcp.cell, must: 0.5},
		{what: "none", figure: rate, row: shm.cell, must: 5},
	}, []result{tcp, shm})
	assert.Equal(t, []float64{4, 2, 5, 2}, []float64{v[0].Measured, v[0].Least, v[0].Most, v[0].ToBest})
	assert.Equal(t, []float64{0.25, 0.25, 0.5, 0.5}, []float64{v[1].Measured, v[1].Least, v[1].Most, v[1].ToBest})
	assert.Equal(t, []float64{80, 0, 0, 0}, []float64{v[2].Measured, v[2].Least, v[2].Most, v[2].ToBest})
}
