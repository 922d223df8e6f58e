//go:build works

package workswith_test

import (
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// socketDir makes a temporary folder whose name is short: the name of a Unix socket has 107
// characters at most.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "works")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// startServer starts a server in this process's terminal group, waits until it accepts at the
// Unix socket, and stops it by SIGINT when the test is over.
func startServer(t *testing.T, cmd *exec.Cmd, socket string) {
	t.Helper()
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	require.NoError(t, cmd.Start(), "make test-works installs it")
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		assert.NoError(t, cmd.Process.Signal(syscall.SIGINT))
		select {
		case err := <-ended:
			assert.NoError(t, err)
		case <-time.After(patience):
			assert.Fail(t, "the server does not end")
			_ = cmd.Process.Kill()
		}
	})
	require.Eventually(t, func() bool {
		c, err := net.Dial("unix", socket)
		if err != nil {
			return false
		}
		return c.Close() == nil
	}, patience, 20*time.Millisecond, "the server does not listen")
}
