//go:build linux && cgo

package ofifabric_test

import (
	"bytes"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// lockRegion takes the lock in the memory that an shm endpoint shares, like a peer
// that is killed while it holds the lock. It knows the layout of one version only.
func lockRegion(t *testing.T, e *side) {
	t.Helper()
	_, name, _ := bytes.Cut(bytes.TrimRight(e.Name(), "\x00"), []byte("://"))
	f, err := os.OpenFile("/dev/shm/"+string(name), os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	mem, err := syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Munmap(mem) })
	const version, lock = 4, 24
	if mem[0] != version || runtime.GOARCH != "amd64" {
		t.Skipf("the lock is known in regions of version %d on amd64, as libfabric 1.17 makes them: those of %s on %s have version %d",
			version, ofi.LibraryVersion(), runtime.GOARCH, mem[0])
	}
	// On amd64, glibc's spin lock is 1 when it is free (pthread_spin_lock(3)).
	require.True(t, (*atomic.Uint32)(unsafe.Pointer(&mem[lock])).CompareAndSwap(1, 0))
}

// A thread that spins on the lock of a dead process is rescued, and so is one
// that waits for that thread. The process goes on with other endpoints.
func TestRescue(t *testing.T) {
	for round := range 5 {
		a, b := pair(t, "shm")
		rescuer, ok := a.Endpoint.(fabric.Rescuer)
		require.True(t, ok)
		require.False(t, rescuer.Rescue(), "nothing hangs")
		a.post(b, fabric.Op{Kind: fabric.Inject, To: a.peer, Buf: outside(t, "connect")})
		b.poll()
		b.post(a, fabric.Op{Kind: fabric.Inject, To: b.peer, Buf: outside(t, "something to look for")})
		lockRegion(t, a)
		ended := make(chan error, 3)
		for range cap(ended) - 1 { // the second waits for a lock that the first holds
			go func() {
				_, _, err := a.Exchange(nil, make([]fabric.Completion, 8))
				ended <- err
			}()
		}
		lockRegion(t, b)
		hangs := outside(t, "hangs")
		go func() {
			_, _, err := a.Exchange([]fabric.Op{{Kind: fabric.Inject, To: a.peer, Buf: hangs}}, nil)
			ended <- err
		}()
		start := time.Now()
		for !rescuer.Rescue() {
			require.Less(t, time.Since(start), timeout, "round %d", round)
			time.Sleep(time.Millisecond)
		}
		for range cap(ended) {
			select {
			case err := <-ended:
				assert.ErrorIs(t, err, fabric.ErrAbandoned)
			case <-time.After(timeout):
				t.Fatal("a call did not come out")
			}
		}
		_, _, err := a.Exchange(nil, make([]fabric.Completion, 1))
		require.ErrorIs(t, err, fabric.ErrAbandoned)
		_, err = a.Insert(b.Name())
		require.ErrorIs(t, err, ofi.ErrAbandoned)
		require.True(t, rescuer.Rescue())
		require.NoError(t, a.Shutdown())
	}
	closed := open(t, "shm")
	require.NoError(t, closed.Close())
	require.False(t, closed.Endpoint.(fabric.Rescuer).Rescue())
	x, y := pair(t, "shm")
	x.post(y, fabric.Op{Kind: fabric.Inject, To: x.peer, Buf: outside(t, "others work")})
	y.poll()
}
