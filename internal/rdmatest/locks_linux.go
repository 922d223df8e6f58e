//go:build linux && cgo

package rdmatest

import (
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
)

// Providers are the providers that the tests use besides the simulated fabric.
var Providers = testenv.Providers()

// fileLocks lists the PIDs of the processes that hold locks on files, by inode.
func fileLocks(t *testing.T) map[string]int {
	t.Helper()
	text, err := os.ReadFile("/proc/locks")
	require.NoError(t, err)
	locks := map[string]int{}
	for line := range strings.Lines(string(text)) {
		// 1: FLOCK ADVISORY WRITE 1234 00:1a:5678 0 EOF
		if f := strings.Fields(line); len(f) > 5 && f[1] == "FLOCK" {
			pid, err := strconv.Atoi(f[4])
			require.NoError(t, err)
			locks[f[5][strings.LastIndex(f[5], ":")+1:]] = pid
		}
	}
	return locks
}

// inode returns the number of a file's inode.
func inode(info fs.FileInfo) string {
	return strconv.FormatUint(info.Sys().(*syscall.Stat_t).Ino, 10)
}
