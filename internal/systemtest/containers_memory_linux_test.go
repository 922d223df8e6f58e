//go:build linux && cgo && hosts

package systemtest

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestContainersLittleMemory: with a small /dev/shm, as in containers, as many peers as it
// has room for share memory, and the others get the next provider. libfabric wants 17 MiB
// free for each processor before it opens an endpoint, which takes 17 MiB.
func TestContainersLittleMemory(t *testing.T) {
	const callers = 6
	need := 17 * runtime.NumCPU()
	for name, tt := range map[string]struct {
		size     int // in MiB
		all, any bool
	}{
		"for nobody":   {need / 2, false, false},
		"for some":     {need + 16, false, true},
		"for everyone": {need + 2*17*callers, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			size := fmt.Sprintf("size=%dm", tt.size)
			require.NoError(t, unix.Mount("tmpfs", "/dev/shm", "tmpfs", 0, size)) // for this process and its children
			t.Cleanup(func() { assert.NoError(t, unix.Unmount("/dev/shm", unix.MNT_DETACH)) })
			addr := rdmatest.StartCounterpart(t, "shm,net")
			shared := 0
			for range callers {
				if provider, _ := startCaller(t, rdmatest.Process(t, "caller", "shm,net", addr)); provider == "shm" {
					shared++
				}
			}
			assert.Equal(t, tt.all, shared == callers, "%d of %d share memory", shared, callers)
			assert.Equal(t, tt.any, shared > 0, "%d of %d share memory", shared, callers)
		})
	}
}
