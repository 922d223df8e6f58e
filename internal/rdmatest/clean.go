package rdmatest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed202c38ff/fabricnet/internal/shmdir"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// Cleanly closes Transports when the test is over, and then checks that no goroutines, files,
// shared memory or budget are left. It must be called first, and once for all of them: while one is
// open, it has goroutines.
func Cleanly(t *testing.T, all ...*rdmanet.Transport) { t.Helper(); CleanlyBut(t, 0, all...) }

// CleanlyBut is like Cleanly, but lets libfabric leave a few files open.
func CleanlyBut(t *testing.T, few int, all ...*rdmanet.Transport) {
	t.Helper()
	goroutines := goleak.IgnoreCurrent()
	files, shm := len(OpenFiles(t)), SharedMemory(t)
	t.Cleanup(func() {
		for _, tr := range all {
			require.NoError(t, tr.Close())
		}
		goleak.VerifyNone(t, goroutines)
		// Later names are other tests', whose processes come and go all the time, unless they have our PID.
		made, ours := namesInShm(t), fmt.Sprintf(".%d-", os.Getpid())
		// libfabric closes sockets late. What a process that was killed, or has just ended
		// without Close, leaves in /dev/shm disappears when another process cleans up.
		assert.EventuallyWithT(t, func(c *assert.CollectT) {
			open := OpenFiles(t)
			if len(open) > files+few { // Go keeps the pipes of splice(2) until the second garbage collection
				runtime.GC()
			}
			assert.LessOrEqual(c, len(open), files+few, "open files: %v", open)
			shmdir.Clean(shmdir.Dir)
			left := slices.DeleteFunc(SharedMemory(t), func(name string) bool {
				return !slices.Contains(made, name) && !strings.Contains(name, ours)
			})
			assert.Subset(c, shm, left, "names in /dev/shm")
		}, Patience, 10*time.Millisecond)
		for _, tr := range all {
			assert.Zero(t, tr.Stats().Memory.Used, "memory budget")
			assert.Zero(t, tr.Stats().Peers)
		}
	})
}

// OpenFiles lists what the open files of this process are.
func OpenFiles(t *testing.T) (targets []string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0") // makes Go open its own files, too
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range list {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		// libfabric opens each RDMA device once and keeps it open.
		if err != nil || !strings.HasPrefix(target, "/dev/infiniband/") && target != "anon_inode:[infinibandevent]" {
			targets = append(targets, target)
		}
	}
	return targets
}

// SharedMemory lists the names in /dev/shm that belong to this process or to no living
// process.
func SharedMemory(t *testing.T) []string {
	t.Helper()
	return sharedMemory(t, func(pid int) bool { return pid == os.Getpid() || pid == nobody })
}

// SharedMemoryOf lists the names in /dev/shm that belong to a living process.
func SharedMemoryOf(t *testing.T, pid int) []string {
	t.Helper()
	return sharedMemory(t, func(holder int) bool { return holder == pid })
}

// nobody stands for the process that holds a name in /dev/shm if none does.
const nobody = -1

// sharedMemory lists the names in /dev/shm that some processes hold: each keeps a file locked whose
// name is, or begins, those that it has.
func sharedMemory(t *testing.T, wanted func(pid int) bool) []string {
	t.Helper()
	names := namesInShm(t)
	locks := fileLocks(t)
	return slices.DeleteFunc(names, func(name string) bool {
		guard, _, _ := strings.Cut(name, ".")
		holder := nobody
		if info, err := os.Stat("/dev/shm/" + guard); err == nil {
			if pid, locked := locks[inode(info)]; locked {
				holder = pid
			}
		}
		_, err := os.Lstat("/dev/shm/" + name)
		return err != nil || !wanted(holder)
	})
}

func namesInShm(t *testing.T) []string {
	t.Helper()
	list, err := os.ReadDir("/dev/shm")
	require.NoError(t, err)
	names := []string{}
	for _, e := range list {
		if strings.HasPrefix(e.Name(), "fabricnet-") {
			names = append(names, e.Name())
		}
	}
	return names
}

// RegionsOf lists the names of these processes in libfabric's shared memory. It leaves out
// those from before since: an earlier process with the same PID may have left some.
func RegionsOf(since time.Time, pids ...int) (names []string, err error) {
	for _, pid := range pids {
		list, err := filepath.Glob(fmt.Sprintf("/dev/shm/fabricnet-*.%d-*", pid))
		if err != nil {
			return nil, err
		}
		for _, name := range list {
			if info, err := os.Stat(name); err == nil && info.ModTime().After(since) {
				names = append(names, name)
			}
		}
	}
	return names, nil
}

// GoMemory returns how much memory Go has from the system, in bytes. It does not
// count what the race detector needs.
func GoMemory() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Sys - m.HeapReleased)
}
