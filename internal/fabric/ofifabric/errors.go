//go:build linux && cgo

package ofifabric

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/shmdir"
)

// explain says which provider failed, where, and what can be done about it.
func explain(provider string, src netip.Addr, err error) error {
	if _, ok := err.(*fabric.DomainError); ok || errors.Is(err, fabric.ErrUnsupported) { //nolint:errorlint // says it all itself
		return err
	}
	if full := (*shmdir.SpaceError)(nil); has(provider, namedRegion) && !errors.As(err, &full) {
		if hint := shmSpace(); hint != nil {
			return fmt.Errorf("provider %s: %w: %w", provider, hint, err)
		}
	}
	if has(provider, boundUniverse) && errors.Is(err, syscall.EINVAL) {
		// The value that the table of quirks sets fits all devices, so this one is the user's.
		return fmt.Errorf("provider %s: %w (the device may lack room for the completions of FI_UNIVERSE_SIZE peers: unset it, or set a smaller one, such as FI_UNIVERSE_SIZE=16, before the program starts)", provider, err)
	}
	if errors.Is(err, fabric.ErrNoProvider) && !anywhere(src) {
		return fmt.Errorf("provider %s for %s: %w (fi_info -p '%s' lists where it is)", provider, src, err, provider)
	}
	return fmt.Errorf("provider %s: %w", provider, lockedMemory(err))
}

// lockedMemory adds a likely cause if a device has no memory for its queues, or cannot register
// any: such memory must be locked, and the system limits how much a process may lock.
func lockedMemory(err error) error {
	var limit unix.Rlimit
	if !errors.Is(err, syscall.ENOMEM) || unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) != nil ||
		limit.Cur == unix.RLIM_INFINITY {
		return err
	}
	return fmt.Errorf("%w (this process may lock %d KiB of memory: raise that with ulimit -l unlimited, "+
		"LimitMEMLOCK=infinity in a systemd unit, or memlock in /etc/security/limits.conf)", err, limit.Cur>>10)
}
