//go:build linux && cgo

package ofifabric

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"path/filepath"
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
	region, err := regionOf(e.Name())
	if err != nil {
		return err
	}
	e.claim, err = shmdir.NewClaim(shmDir, region)
	return err
}

// regionOf is the file in /dev/shm that a shm endpoint's name stands for.
func regionOf(name []byte) (string, error) {
	_, region, found := bytes.Cut(bytes.TrimRight(name, "\x00"), []byte("://"))
	if !found || len(region) == 0 || bytes.ContainsRune(region, '/') {
		return "", fmt.Errorf("no region is known by the name %q", name)
	}
	return string(region), nil
}

// sameLayout compares the first bytes of two regions, in which every libfabric keeps the
// version of the layout (struct smr_region): equal versions of the library may have been
// built with changes.
func sameLayout(own, peer []byte) error {
	var versions [2]byte
	for i, name := range [][]byte{own, peer} {
		region, err := regionOf(name)
		if err == nil {
			versions[i], err = firstByte(filepath.Join(shmDir, region))
		}
		if err != nil {
			return fmt.Errorf("the layout of a shm region: %w", err)
		}
	}
	if versions[0] != versions[1] {
		return fmt.Errorf("provider shm: the layout of the region has version %d here, %d at the peer", versions[0], versions[1])
	}
	return nil
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

// firstByte reads from a file that a peer has named: it may be of any kind.
func firstByte(name string) (byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, fmt.Errorf("%s is no region but %v", name, info.Mode())
	}
	var b [1]byte
	_, err = io.ReadFull(f, b[:])
	return b[0], err
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
