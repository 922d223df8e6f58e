//go:build linux && cgo

package ofifabric

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// explain says which provider failed, where, and what can be done about it.
func explain(provider string, src netip.Addr, err error) error {
	if _, ok := err.(*fabric.DomainError); ok { //nolint:errorlint // says it all itself
		return err
	}
	if provider == shm {
		if hint := shmSpace(); hint != "" {
			return fmt.Errorf("provider %s: %s: %w", provider, hint, err)
		}
	}
	if strings.HasSuffix(provider, ";ofi_rxm") && errors.Is(err, syscall.EINVAL) {
		// fi_enable: ofi_rxm makes the device's completion queue large enough
		// for FI_UNIVERSE_SIZE peers, 256 unless the environment says otherwise.
		return fmt.Errorf("provider %s: %w (a small device may lack room for the completions of 256 peers: set FI_UNIVERSE_SIZE, such as FI_UNIVERSE_SIZE=4, in the environment before the program starts)", provider, err)
	}
	if errors.Is(err, fabric.ErrNoProvider) && !anywhere(src) {
		return fmt.Errorf("provider %s for %s: %w (fi_info -p '%s' lists where it is)", provider, src, err, provider)
	}
	return fmt.Errorf("provider %s: %w", provider, err)
}

// lockedMemory says what may be behind a registration that finds no memory: what
// devices have registered must stay where it is, which the system limits.
func lockedMemory(err error) error {
	var limit unix.Rlimit
	if !errors.Is(err, syscall.ENOMEM) || unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) != nil || limit.Cur == unix.RLIM_INFINITY {
		return err
	}
	return fmt.Errorf("%w (the limit on locked memory is %d KiB: raise it, as ulimit -l and LimitMEMLOCK of systemd do)", err, limit.Cur>>10)
}
