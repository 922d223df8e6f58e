//go:build linux && cgo

package ofifabric

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestSmallDevicesAreToldOfTheUniverseSize(t *testing.T) {
	failed := &ofi.CallError{Call: "fi_enable", Errno: ofi.Errno(syscall.EINVAL)}
	err := explain("verbs;ofi_rxm", netip.Addr{}, failed)
	assert.ErrorContains(t, err, "FI_UNIVERSE_SIZE=4")
	assert.ErrorIs(t, err, syscall.EINVAL)
	assert.NotContains(t, explain("net", netip.Addr{}, failed).Error(), "UNIVERSE")
	failed.Errno = ofi.Errno(syscall.ENOMEM)
	assert.NotContains(t, explain("verbs;ofi_rxm", netip.Addr{}, failed).Error(), "UNIVERSE")
}

// libfabric finds "net;ofi_rxm" and others for "ofi_rxm", of which none has
// that name.
func TestPartOfANameIsNoProvider(t *testing.T) {
	assert.True(t, offersDelivery(wanted{Hints: ofi.Hints{Provider: "tcp;ofi_rxm"}}))
	assert.False(t, offersDelivery(wanted{Hints: ofi.Hints{Provider: "ofi_rxm"}}))
}

func TestLockedMemory(t *testing.T) {
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old))
	low := unix.Rlimit{Cur: min(64<<10, old.Max), Max: old.Max}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &low))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old)) }()
	full := fmt.Errorf("fi_mr_reg: %w", syscall.ENOMEM)
	err := lockedMemory(full)
	require.ErrorIs(t, err, syscall.ENOMEM)
	assert.ErrorContains(t, err, fmt.Sprintf("the limit on locked memory is %d KiB", low.Cur>>10))
	assert.Equal(t, error(syscall.EINVAL), lockedMemory(syscall.EINVAL))
}
