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

// processBase returns what the names of this process's regions begin with. By default libfabric
// uses only the process number, which a process in another PID namespace may have, too. If both
// share /dev/shm, each would remove the other's region or take it for its own.
func processBase() string { return fmt.Sprintf("fi_shm://%s%d-", guard.Prefix(), os.Getpid()) }

// randomRegion returns what makes an endpoint's region unique. Nobody can guess it: libfabric uses
// a file that it finds under a region's name, whoever made it (smr_retry_map).
var randomRegion = func() (id [16]byte) {
	rand.Read(id[:])
	return id
}

// regionBase returns what the name of the next endpoint's region begins with. libfabric appends the
// user and the endpoint's number.
func regionBase() string { return fmt.Sprintf("%s%x", processBase(), randomRegion()) }

// making counts the endpoints of this process whose regions are not reserved yet: each needs room
// that the file system still reports as free.
var making atomic.Int64

// roomForRegion checks that shmDir is safe and has room for one more region. The room counts as
// taken until done is called. libfabric makes the file, maps it and writes to it in one call: if
// somebody fills shmDir during that call, it can still raise SIGBUS.
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

// holdGuard guards the region that is about to be made, until guard.Release. It fails if there is
// no descriptor left for the region: from libfabric 2.3 on, smr_ep_ctrl goes on without a region
// that it could not open, which ends the process.
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

// regionOf returns the file in /dev/shm that a shm endpoint's name stands for.
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

// checkRegion checks the region that a peer has named, before libfabric maps it. It has to meet the
// conditions that our own met, with its memory reserved and with the same layout.
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

// Unlink removes the name of the memory that a shm endpoint shares. Otherwise the name would stay
// behind if the process ended without Close. Peers that have not sent or received anything yet can
// no longer attach; those that have are not affected, and neither is Close. For other providers
// Unlink does nothing. It may be called again.
func (e *endpoint) Unlink() error {
	if e.unlink == nil {
		return nil
	}
	return e.unlink()
}

// Named reports whether the endpoint's memory still has its name: others may have tidied up. It is
// true for providers without named memory.
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

// removeRegion removes the region's name and then ends what holdGuard began.
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

// spareRegions is for how many regions shmDir must have room before an endpoint is opened that
// nobody needs yet. That comes on top of what libfabric wants there before it offers shm.
const spareRegions = 4

// Spare implements fabric.Sparer.
func (ofiFabric) Spare() bool {
	return shmdir.Plenty(shmDir, uint64(runtime.NumCPU())*shmdir.PerCPU+spareRegions*shmdir.PerEndpoint)
}

// shmSpace returns an error that says how much room is missing in /dev/shm for libfabric to offer
// the provider, nil if there is enough. The provider itself reports only that it has no data.
func shmSpace() error {
	return shmdir.CheckSpace(shmDir, uint64(runtime.NumCPU())*shmdir.PerCPU)
}
