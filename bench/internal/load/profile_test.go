package load

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/bench/internal/benchtest"
	"github.com/seed202c38ff/fabricnet/bench/internal/report"
	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

func TestProfilesOfBothProcesses(t *testing.T) {
	dir := t.TempDir()
	j := Job{Case: workload.Case{Mode: workload.ModeRPC, Size: 64, Inflight: 64, Conns: 1}.Over(workload.TCP), Host: "127.0.0.1", Time: 50 * time.Millisecond, Round: 2, Profile: dir}
	_, err := measure(t.Context(), benchtest.Program(t), j)
	require.NoError(t, err)
	var names []string
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, f := range files {
		names = append(names, f.Name())
		file, err := os.Open(filepath.Join(dir, f.Name()))
		require.NoError(t, err)
		unpacked, err := gzip.NewReader(file)
		require.NoError(t, err)
		text, err := io.ReadAll(unpacked)
		require.NoError(t, err)
		assert.Contains(t, string(text), "nanoseconds", "it is a CPU profile")
		require.NoError(t, file.Close())
	}
	assert.Equal(t, []string{"rpc-64-x64-tcp.r2.client.pprof", "rpc-64-x64-tcp.r2.server.pprof"}, names)

	j.Profile = filepath.Join(dir, "missing")
	_, err = measure(t.Context(), benchtest.Program(t), j)
	assert.ErrorContains(t, err, "-profile: open")
}

func TestProfilesHaveNamesOfTheirOwn(t *testing.T) {
	names := make(map[string]bool)
	cases := append(report.TargetCases(report.LoopbackTargets, []string{"shm", "net", "tcp;ofi_rxm"}), workload.Case{Mode: workload.ModeConn, Size: 1, Inflight: 1, Conns: 1}.Over(workload.Transport{Name: workload.TransportFresh, Provider: "shm"}))
	for _, c := range cases {
		p := profiler{job: Job{Case: c, Round: 1}, role: roleClient}
		assert.NotContains(t, names, p.name())
		assert.Regexp(t, `^[A-Za-z0-9_.-]+$`, p.name())
		names[p.name()] = true
	}
}
