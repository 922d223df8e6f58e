//go:build linux && cgo

package ofifabric

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"

	"github.com/seed202c38ff/fabricnet/internal/shmdir"
)

const shmDir = shmdir.Dir

// regionBase begins the names of this process's regions. By itself libfabric takes
// the process number alone, which another process may have, too, in another PID namespace;
// if both share /dev/shm, each then removes the other's region or takes it for its own.
var regionBase = sync.OnceValue(func() string {
	var random [8]byte
	rand.Read(random[:])
	return fmt.Sprintf("fi_shm://%d-%x", os.Getpid(), random)
})

// claimRegion has the name of the memory that a shm endpoint shares removed by
// others if this process is killed before Unlink: see shmdir.Clean.
func (e *endpoint) claimRegion() (err error) {
	if !has(e.attr.Provider, namedRegion) {
		return nil
	}
	_, region, found := bytes.Cut(bytes.TrimRight(e.Name(), "\x00"), []byte("://"))
	if !found || len(region) == 0 || bytes.ContainsRune(region, '/') {
		return fmt.Errorf("provider %s: no region is known by the name %q", e.attr.Provider, e.Name())
	}
	e.claim, err = shmdir.NewClaim(shmDir, string(region))
	return err
}

// Unlink removes the name of the memory that a shm endpoint shares, which
// otherwise stays behind when the process ends without Close. Peers that have
// not sent or received anything yet can no longer attach; those that have are
// not affected, nor is Close. For other providers it does nothing. It may be
// called again.
func (e *endpoint) Unlink() error {
	if e.claim == nil {
		return nil
	}
	return e.claim.Remove()
}

// shmSpace says how much room is missing in /dev/shm, or nothing if there is
// enough. The provider itself reports only that it has no data.
func shmSpace() string {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(shmDir, &stat); err != nil {
		return fmt.Sprintf("needs a tmpfs on %s (%v)", shmDir, err)
	}
	need := uint64(runtime.NumCPU()) * shmdir.PerCPU
	free := stat.Bavail * uint64(stat.Bsize)
	if free >= need {
		return ""
	}
	return fmt.Sprintf("needs %d MiB free in %s and there are %d: enlarge it (mount -o remount,size=... or docker --shm-size=...) or remove stale files from it",
		need>>20, shmDir, free>>20)
}
