package report

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRecordSaysHowToRepeatIt(t *testing.T) {
	r := Record{
		Commit: "abc", Command: "bench -targets", Machine: "a machine", Date: time.Date(2020, 2, 3, 4, 5, 6, 0, time.UTC),
		Absent: "not on this machine: rdma/efa", Rows: results(), Verdicts: Judge(LoopbackTargets, results()),
	}
	var out bytes.Buffer
	require.NoError(t, r.WriteText(&out))
	for _, want := range []string{"a machine\n", "commit abc, 2020-02-03T04:05:06Z\n", "bench -targets\n", "rdma/efa\n", "lat 64", "verdict"} {
		assert.Contains(t, out.String(), want)
	}
}

func TestSave(t *testing.T) {
	assert.NoError(t, Save("", nil), "no file was asked for")
	name := filepath.Join(t.TempDir(), "file")
	require.NoError(t, Save(name, func(w io.Writer) error {
		_, err := io.WriteString(w, "text")
		return err
	}))
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	assert.Equal(t, "text", string(text))

	failed := errors.New("failed")
	assert.ErrorIs(t, Save(name, func(io.Writer) error { return failed }), failed)
	assert.Error(t, Save(filepath.Join(name, "below"), nil), "a file is no directory")
}
