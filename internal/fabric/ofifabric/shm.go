//go:build linux && cgo

package ofifabric

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/internal/shmdir"
)

const shmDir = shmdir.Dir

// guard guards the regions of this process while they have names.
var guard = shmdir.NewGuard(shmDir)

// processBase begins the names of this process's regions. By itself libfabric takes
// the process number alone, which another process may have, too, in another PID namespace;
// if both share /dev/shm, each then removes the other's region or takes it for its own.
func processBase() string { return fmt.Sprintf("fi_shm://%s%d-", guard.Prefix(), os.Getpid()) }

// randomRegion is what sets an endpoint's region apart. Nobody can guess it: libfabric uses
// a file that it finds under a region's name, whoever made it (smr_retry_map).
var randomRegion = func() (id [16]byte) {
	rand.Read(id[:])
	return id
}

// regionBase begins the name of the next endpoint's region. libfabric adds the user and
// the endpoint's number.
func regionBase() string { return fmt.Sprintf("%s%x", processBase(), randomRegion()) }

// making counts the endpoints of this process whose regions are not yet reserved: each
// needs room that the file system still calls free.
var making atomic.Int64

// roomForRegion says whether shmDir is safe and has room for one more region, for which
// the room counts as taken until done. libfabric makes the file, maps it and writes to it
// in one call: whoever fills shmDir during that call can still make it raise SIGBUS.
func roomForRegion() (done func(), err error) {
	if err := shmdir.CheckDir(shmDir); err != nil {
		return nil, err
	}
	regions := making.Add(1)
	done = func() { making.Add(-1) }
	if err := shmdir.CheckSpace(shmDir, uint64(regions)*shmdir.PerEndpoint); err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// holdGuard has the region that is going to be made guarded, until guard.Release. It fails
// if no descriptor is left for that: from libfabric 2.3 on smr_ep_ctrl goes on without a
// region that it could not open, and ends the process.
func holdGuard() error {
	if err := guard.Hold(); err != nil {
		return err
	}
	spare, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return errors.Join(os.NewSyscallError("eventfd", err), guard.Release())
	}
	return unix.Close(spare)
}

// regionOf is the file in /dev/shm that a shm endpoint's name stands for.
func regionOf(name []byte) (string, error) {
	_, region, found := bytes.Cut(bytes.TrimRight(name, "\x00"), []byte("://"))
	if !found || len(region) == 0 || bytes.ContainsRune(region, '/') {
		return "", fmt.Errorf("no region is known by the name %q", name)
	}
	return string(region), nil
}

// secureRegion checks the file that libfabric has made, and reserves its memory.
func (e *endpoint) secureRegion() error {
	name, err := regionOf(e.Name())
	if err != nil {
		return err
	}
	r, err := shmdir.OpenRegion(shmDir, name)
	if err != nil {
		return err
	}
	defer r.Close()
	if e.layout, err = r.Layout(); err != nil {
		return err
	}
	return r.Reserve()
}

// checkRegion looks at the region that a peer has named before libfabric maps it. It has to
// be as our own was found to be, with the same layout.
func (e *endpoint) checkRegion(peer []byte) error {
	name, err := regionOf(peer)
	if err != nil {
		return err
	}
	r, err := shmdir.OpenRegion(shmDir, name)
	if err != nil {
		return fmt.Errorf("the peer's region: %w", err)
	}
	defer r.Close()
	if err := r.Reserved(); err != nil {
		return fmt.Errorf("the peer's region: %w", err)
	}
	layout, err := r.Layout()
	if err != nil {
		return fmt.Errorf("the layout of a shm region: %w", err)
	}
	if layout != e.layout {
		return fmt.Errorf("provider shm: the layout of the region has version %d here, %d at the peer", e.layout, layout)
	}
	return nil
}

// Unlink removes the name of the memory that a shm endpoint shares, which
// otherwise stays behind when the process ends without Close. Peers that have
// not sent or received anything yet can no longer attach; those that have are
// not affected, nor is Close. For other providers it does nothing. It may be
// called again.
func (e *endpoint) Unlink() error {
	if e.unlink == nil {
		return nil
	}
	return e.unlink()
}

// Named reports whether the endpoint's memory still has its name: others may have tidied up.
func (e *endpoint) Named() bool {
	if e.unlink == nil {
		return true
	}
	name, err := regionOf(e.Name())
	if err == nil {
		_, err = os.Lstat(filepath.Join(shmDir, name))
	}
	return err == nil
}

// removeRegion ends what holdGuard began: the region's name goes first.
func (e *endpoint) removeRegion() error {
	name, err := regionOf(e.Name())
	if err == nil {
		err = os.Remove(filepath.Join(shmDir, name))
	}
	if errors.Is(err, os.ErrNotExist) { // smr_free has removed it
		err = nil
	}
	return errors.Join(err, guard.Release())
}

// spareRegions is for how many more regions shmDir must have room for one that nobody needs yet,
// beyond what libfabric wants there before it offers shm.
const spareRegions = 4

// Spare is fabric.Sparer's.
func (ofiFabric) Spare() bool {
	return shmdir.Plenty(shmDir, uint64(runtime.NumCPU())*shmdir.PerCPU+spareRegions*shmdir.PerEndpoint)
}

// shmSpace says how much room is missing in /dev/shm for libfabric to offer the provider,
// nil if there is enough. The provider itself reports only that it has no data.
func shmSpace() error {
	return shmdir.CheckSpace(shmDir, uint64(runtime.NumCPU())*shmdir.PerCPU)
}
