package report

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

func TestJudge(t *testing.T) {
	tcp := Result{Case: workload.Lat64.Over(workload.TCP), P50us: 10, P50Best: 8, OpsPerS: 100}
	shm := Result{Case: workload.Lat64.Over(workload.Shm), P50us: 4, P50Best: 3, OpsPerS: 250}
	broken := Result{Case: workload.Lat64.Over(workload.Net), Error: "no"}
	rows := []Result{tcp, shm, broken}
	for name, test := range map[string]struct {
		target   Target
		measured float64
		verdict  string
	}{
		"less, goal":         {Target{figure: p50, row: shm.Case, than: tcp.Case, must: 0.5, goal: 0.4}, 0.4, verdictGoal},
		"less, must":         {Target{figure: p50, row: shm.Case, than: tcp.Case, must: 0.4, goal: 0.3}, 0.4, verdictMet},
		"less, neither":      {Target{figure: p50, row: shm.Case, than: tcp.Case, must: 0.39, goal: 0.3}, 0.4, verdictMissed},
		"more, goal":         {Target{figure: rate, row: shm.Case, than: tcp.Case, must: 2, goal: 2.5}, 2.5, verdictGoal},
		"more, must":         {Target{figure: rate, row: shm.Case, than: tcp.Case, must: 2.5, goal: 3}, 2.5, verdictMet},
		"more, neither":      {Target{figure: rate, row: shm.Case, than: tcp.Case, must: 2.6, goal: 3}, 2.5, verdictMissed},
		"must without goal":  {Target{figure: p50, row: shm.Case, than: tcp.Case, must: 1}, 0.4, verdictMet},
		"goal without must":  {Target{figure: rate, row: shm.Case, than: tcp.Case, goal: 3}, 2.5, verdictGoalMissed},
		"another figure":     {Target{figure: p50, row: shm.Case, than: tcp.Case, other: p50Best, must: 0.5}, 0.5, verdictMet},
		"not compared":       {Target{figure: p50, row: shm.Case, must: 4}, 4, verdictMet},
		"not compared, zero": {Target{figure: fairness, row: shm.Case, must: 0.9}, 0, verdictMissed},
		"failed":             {Target{figure: p50, row: broken.Case, must: 4}, 0, verdictNotMeasured},
		"nothing to compare": {Target{figure: p50, row: shm.Case, than: broken.Case, must: 4}, 0, verdictNotMeasured},
		"absent":             {Target{figure: p50, row: workload.Lat64.Over(workload.Unix), than: tcp.Case, must: 4}, 0, verdictNotMeasured},
	} {
		got := Judge([]Target{test.target}, rows)
		require.Len(t, got, 1, name)
		assert.Equal(t, test.verdict, got[0].Verdict, name)
		assert.InDelta(t, test.measured, got[0].Measured, 1e-9, name)
	}
}

func TestEnforce(t *testing.T) {
	row := Result{Case: workload.Lat64.Over(workload.Shm), P50us: 4}
	met := Target{what: "fast", figure: p50, row: row.Case, must: 5}
	missed, absent := met, met
	missed.what, missed.must = "faster", 3
	absent.row = workload.Lat64.Over(workload.Net)
	goal := Target{what: "wish", figure: p50, row: row.Case, goal: 1}
	assert.NoError(t, Enforce(Judge([]Target{met, goal}, []Result{row})))
	assert.EqualError(t, Enforce(Judge([]Target{met, missed}, []Result{row})), "MISSED: faster (4.00, must be <= 3)")
	assert.ErrorContains(t, Enforce(Judge([]Target{absent}, []Result{row})), verdictNotMeasured)
}

func TestTargetsAreConsistent(t *testing.T) {
	names := make(map[string]bool)
	for _, target := range slices.Concat(LoopbackTargets, VerbsTargets) {
		assert.False(t, names[target.what], "twice: %s", target.what)
		names[target.what] = true
		assert.True(t, target.must != 0 || target.goal != 0, target.what)
		if target.must != 0 && target.goal != 0 {
			assert.True(t, target.meets(target.goal, target.must), "the goal of %q is the easier bound", target.what)
		}
	}
}

func TestTargetCellsAreWhatIsNeededAndOffered(t *testing.T) {
	all := TargetCases(LoopbackTargets, []string{"shm", "net", "tcp;ofi_rxm"})
	for i, c := range all {
		assert.NotContains(t, all[:i], c, "twice")
		w := c.Work()
		assert.True(t, i == 0 || all[i-1].Work() == w || !slices.ContainsFunc(all[:i], func(c workload.Case) bool { return c.Work() == w }),
			"%v stands apart from its like", c)
	}
	for _, target := range LoopbackTargets {
		assert.Contains(t, all, target.row)
		if target.compares() {
			assert.Contains(t, all, target.than)
		}
	}
	labels := func(work workload.Case) (labels []string) {
		for _, c := range all {
			if c.Work() == work {
				labels = append(labels, c.Label())
			}
		}
		return labels
	}
	assert.Equal(t, []string{"tcp", "unix", "rdma/shm", "rdma/tcp;ofi_rxm", "rdma/net"}, labels(workload.BW64K))
	assert.Equal(t, []string{"tcp", "unix", "rdma/shm"}, labels(zc1M))

	for _, c := range TargetCases(LoopbackTargets, []string{"net"}) {
		assert.Contains(t, []string{"", "net"}, c.Provider)
	}
}

func TestVerdictsArePrinted(t *testing.T) {
	tcp := Result{Case: workload.Lat64.Over(workload.TCP), P50us: 10}
	shm := Result{Case: workload.Lat64.Over(workload.Shm), P50us: 4}
	idle := Result{Case: idle1000.Over(workload.Shm), CPUPercent: 0.15}
	var out bytes.Buffer
	require.NoError(t, writeVerdicts(&out, Judge([]Target{
		{what: "round trip", figure: p50, row: shm.Case, than: tcp.Case, must: 0.33, goal: 0.27},
		{what: "idle", figure: cpuPercent, row: idle.Case, must: 1, goal: 0.2},
		{what: "stream", figure: rate, row: workload.BW64K.Over(workload.Net), than: workload.BW64K.Over(workload.TCP), must: 1},
	}, []Result{tcp, shm, idle})))
	lines := strings.Split(out.String(), "\n")
	assert.Equal(t, strings.Fields("target measured rounds to best must goal verdict"), strings.Fields(lines[0]))
	assert.Equal(t, strings.Fields("round trip 0.40x - - <= 0.33x <= 0.27x MISSED"), strings.Fields(lines[1]))
	assert.Equal(t, strings.Fields("idle 0.15% - - <= 1% <= 0.2% goal met"), strings.Fields(lines[2]))
	assert.Equal(t, strings.Fields("stream - - - >= 1x - not measured"), strings.Fields(lines[3]))
}

// The range covers the ratios within each round; the ratio to the best round uses the
// best round of the transport compared with.
func TestRangesAreByRounds(t *testing.T) {
	round := func(ops uint64, p50 time.Duration) workload.Sample {
		return workload.Sample{Ops: ops, Elapsed: time.Second, P50: p50}
	}
	tcp := Summarize(workload.BW64K.Over(workload.TCP), []workload.Sample{round(10, 8), round(40, 2), round(20, 4)})
	shm := Summarize(workload.BW64K.Over(workload.Shm), []workload.Sample{round(40, 2), round(80, 1), round(100, 1)})
	v := Judge([]Target{
		{what: "rate", figure: rate, row: shm.Case, than: tcp.Case, must: 5},
		{what: "time", figure: p50, row: shm.Case, than: tcp.Case, must: 0.5},
		{what: "none", figure: rate, row: shm.Case, must: 5},
	}, []Result{tcp, shm})
	assert.Equal(t, []float64{4, 2, 5, 2}, []float64{v[0].Measured, v[0].Least, v[0].Most, v[0].ToBest})
	assert.Equal(t, []float64{0.25, 0.25, 0.5, 0.5}, []float64{v[1].Measured, v[1].Least, v[1].Most, v[1].ToBest})
	assert.Equal(t, []float64{80, 0, 0, 0}, []float64{v[2].Measured, v[2].Least, v[2].Most, v[2].ToBest})
}
