// Package benchtest has what the tests of several of the benchmark's packages need.
package benchtest

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Program returns the test binary.
func Program(t *testing.T) string {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	return program
}

// Serve runs cmd, which serves measurements, until the test ends, and returns the address that
// it listens on.
func Serve(t *testing.T, cmd *exec.Cmd) (address string) {
	t.Helper()
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		assert.NoError(t, cmd.Process.Signal(os.Interrupt))
		assert.NoError(t, cmd.Wait(), "an interrupt ends it in good order")
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	address, ok := strings.CutPrefix(strings.TrimSpace(line), "serving measurements at ")
	require.True(t, ok, line)
	return address
}
