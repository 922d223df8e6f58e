package load

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

func TestRstreamsTable(t *testing.T) {
	each, err := perTransfer("name      bytes   xfers   iters   total       time     Gb/sec    usec/xfer\n" +
		"custom    64      1       2k      250k        0.14s      0.01      35.25\n")
	require.NoError(t, err)
	assert.Equal(t, 35250*time.Nanosecond, each)
	for _, out := range []string{"", "rsocket: Function not implemented", "custom 0.00"} {
		_, err := perTransfer(out)
		assert.Error(t, err, out)
	}
}

func TestRsocketsModes(t *testing.T) {
	_, err := measureRsockets(t.Context(), Job{Case: workload.Case{Mode: workload.ModeRPC, Size: 64}.Over(workload.Rsockets)})
	assert.ErrorContains(t, err, "no mode rpc")
}

// The result counts even if rstream's server does not exit after the measurement.
func TestRstreamDoesNotEnd(t *testing.T) {
	const script = `#!/bin/sh
case " $* " in *" -b "*) exec sleep 100 ;; esac
echo 'usec/xfer'
echo 'custom 64 1 2k 250k 0.14s 0.01 35.25'
`
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, rstreamProgram), []byte(script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	j := Job{Case: workload.Lat64.Over(workload.Rsockets), Host: "127.0.0.1", Time: time.Millisecond}
	s, err := measureRsockets(t.Context(), j)
	require.NoError(t, err)
	assert.Equal(t, 70500*time.Nanosecond, s.P50)
}
