package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/perf/benchfmt"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

func TestOldRecordsCanBeRead(t *testing.T) {
	r, err := Read(writeOldRecord(t))
	require.NoError(t, err)
	require.Len(t, r.Rows, 2)
	assert.InDelta(t, 2.104, r.Rows[1].P50us, 1e-9)
	assert.Zero(t, r.Rows[1].P999us)
	assert.Equal(t, "0.093x", r.Verdicts[0].figure())
	assert.Equal(t, "0.50 KiB", r.Verdicts[1].figure())

	for text, want := range map[string]string{"{": "is not what -json writes", "{}": "has no rows", `{"rows": 1}`: "is not what -json writes"} {
		file := filepath.Join(t.TempDir(), "bad")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		_, err := Read(file)
		assert.ErrorContains(t, err, want)
	}
	_, err = Read(filepath.Join(t.TempDir(), "missing"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func TestARecordSurvivesItsFile(t *testing.T) {
	r := sweepRecord()
	r.Rows[0].Samples = []workload.Sample{{Ops: 3, Elapsed: 7, P50: 1, P90: 2, P99: 3, P999: 4, Fairness: 1, Client: workload.Usage{CPU: 5, Mallocs: 6}, Server: workload.Usage{Resident: 8}}}
	file := filepath.Join(t.TempDir(), "new.json")
	require.NoError(t, Save(file, r.WriteJSON))
	again, err := Read(file)
	require.NoError(t, err)
	assert.Equal(t, r, again)

	r.Rows[0].Samples[0].Times = map[int]uint64{1: 2}
	require.NoError(t, Save(file, r.WriteJSON))
	again, err = Read(file)
	require.NoError(t, err)
	assert.Nil(t, again.Rows[0].Samples[0].Times, "they are not kept")
}

func TestCSVHasTheFieldsOfJSON(t *testing.T) {
	full := Result{
		Case: workload.Lat64.Over(workload.Shm), P50us: 1.25, P50Best: 2, P90us: 3, P99us: 4, P999us: 5, P99Pooled: 5.5, OpsPerS: 6, GBPerS: 7, CPUusPer: 8, CPUsPerGB: 9,
		Mallocs: 10, Fairness: 11, CPUPercent: 12, Registered: 13, Resident: 14, Rounds: 15, Error: "a, \"b\"\nc",
		ServerUsed: 16, ServerMapped: 17, ServerResident: 18, ClientUsed: 19, ClientMapped: 20, ClientResident: 21, NotPossible: "why",
	}
	full.Idle, full.Busy = 22, 23
	var b bytes.Buffer
	require.NoError(t, Record{Rows: []Result{full, {Case: bw64.Over(workload.TCP)}}}.WriteCSV(&b))
	lines, err := csv.NewReader(&b).ReadAll()
	require.NoError(t, err)
	require.Len(t, lines, 3)

	text, err := json.Marshal(full)
	require.NoError(t, err)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(text, &fields))
	values := make(map[string]any)
	for i, name := range lines[0] {
		var v any = lines[1][i]
		if _, isText := fields[name].(string); !isText {
			require.NoError(t, json.Unmarshal([]byte(lines[1][i]), &v), name)
		}
		values[name] = v
	}
	assert.Equal(t, fields, values)
	assert.Empty(t, lines[2][slices.Index(lines[0], "p50_us")], "0 is no figure")
}

func TestBenchfmtHasEveryRound(t *testing.T) {
	round := workload.Sample{
		Ops: 500, Elapsed: time.Millisecond, P50: 1000, P90: 2000, P99: 3000, P999: 4000,
		Client: workload.Usage{CPU: 300 * time.Microsecond, Mallocs: 250}, Server: workload.Usage{CPU: 200 * time.Microsecond},
	}
	r := Record{Command: "bench\n-x", Machine: "A CPU (amd64), 2 CPUs, linux", Rows: []Result{
		{Case: lat64One.Over(workload.TCP), Samples: []workload.Sample{round, round}},
		{Case: rpc64x64.Over(workload.TCPRxm), OpsPerS: 400.5, P50us: 7, P99us: 9, CPUusPer: 3}, // its rounds were not kept
		{Case: workload.Lat64.Over(workload.Net), Error: "failed"},
		{Case: idle1000.Over(workload.Shm), CPUPercent: 1},
		{Case: dialing.Over(workload.Shm), Samples: []workload.Sample{round}},
	}}
	var b bytes.Buffer
	require.NoError(t, r.WriteBenchfmt(&b))
	var got []*benchfmt.Result
	reader := benchfmt.NewReader(&b, "test")
	for reader.Scan() {
		result, ok := reader.Result().(*benchfmt.Result)
		require.True(t, ok, "%v", reader.Result())
		got = append(got, result.Clone())
	}
	require.NoError(t, reader.Err())
	require.Len(t, got, 4)
	value := func(i int, unit string) float64 {
		v, ok := got[i].Value(unit)
		require.True(t, ok, unit)
		return v
	}
	for i, want := range []struct{ name, transport string }{
		{"Lat/size=64/inflight=1/conns=1/onecore", "tcp"},
		{"Lat/size=64/inflight=1/conns=1/onecore", "tcp"},
		{"Rpc/size=64/inflight=64/conns=1", "rdma/tcp;ofi_rxm"},
		{"Conn/size=1/inflight=1/conns=1", "rdma/shm"},
	} {
		assert.Equal(t, want.name, got[i].Name.String())
		assert.Equal(t, want.transport, got[i].GetConfig("transport"))
		assert.Equal(t, "A CPU (amd64)", got[i].GetConfig("cpu"))
	}
	assert.Equal(t, 500, got[0].Iters)
	for unit, want := range map[string]float64{
		"sec/op": 2e-6, "p50-sec": 1e-6, "p90-sec": 2e-6, "p99-sec": 3e-6, "p999-sec": 4e-6, "cpu-sec/op": 1e-6, "allocs/op": 0.5, "B/s": 32e6,
	} {
		assert.InEpsilon(t, want, value(0, unit), 1e-9, unit)
	}
	assert.InEpsilon(t, 1/400.5, value(2, "sec/op"), 1e-6)
	assert.InEpsilon(t, 3e-6, value(2, "cpu-sec/op"), 1e-6)
	_, ok := got[2].Value("p999-sec")
	assert.False(t, ok, "it is not known")
	_, ok = got[3].Value("B/s")
	assert.False(t, ok, "a dial has no throughput")
}

func TestWriteErrorsAreReported(t *testing.T) {
	full := errors.New("full")
	for _, write := range []func(io.Writer) error{sweepRecord().WriteCSV, oneRound().WriteBenchfmt} {
		assert.ErrorIs(t, write(broken{full}), full)
	}
}

func oneRound() Record {
	return Record{Rows: []Result{{Case: workload.Lat64, Samples: []workload.Sample{{Ops: 1}}}}}
}

type broken struct{ err error }

func (b broken) Write([]byte) (int, error) { return 0, b.err }
