//go:build linux && cgo

package ofifabric

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
)

func TestSmallDevicesAreToldOfTheUniverseSize(t *testing.T) {
	failed := &ofi.CallError{Call: "fi_enable", Errno: ofi.Errno(syscall.EINVAL)}
	err := explain("verbs;ofi_rxm", netip.Addr{}, failed)
	assert.ErrorContains(t, err, "FI_UNIVERSE_SIZE=16")
	assert.ErrorIs(t, err, syscall.EINVAL)
	assert.NotContains(t, explain("net", netip.Addr{}, failed).Error(), "UNIVERSE")
	failed.Errno = ofi.Errno(syscall.ENOMEM)
	assert.NotContains(t, explain("verbs;ofi_rxm", netip.Addr{}, failed).Error(), "UNIVERSE")
}

// If a call fails for lack of memory, the error names the limit of locked memory, if there is one.
func TestLockedMemoryIsNamed(t *testing.T) {
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &before))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &before)) }()
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 64 << 10, Max: before.Max}))
	failed := &ofi.CallError{Call: "fi_enable", Errno: ofi.Errno(syscall.ENOMEM)}
	err := explain("verbs;ofi_rxm", netip.Addr{}, failed)
	assert.ErrorContains(t, err, "may lock 64 KiB of memory: raise that with ulimit -l")
	assert.ErrorIs(t, err, syscall.ENOMEM)
	failed.Errno = ofi.Errno(syscall.EINVAL)
	assert.Equal(t, error(failed), lockedMemory(failed))
}

// For "ofi_rxm" libfabric finds "net;ofi_rxm" and others, but no provider of exactly
// that name.
func TestPartOfANameIsNoProvider(t *testing.T) {
	assert.True(t, offersDelivery(wanted{Hints: ofi.Hints{Provider: "tcp;ofi_rxm"}, provider: "tcp;ofi_rxm"}))
	assert.False(t, offersDelivery(wanted{Hints: ofi.Hints{Provider: "ofi_rxm"}, provider: "ofi_rxm"}))
}

// Some providers claim to support completion data, but refuse fi_writedata or
// crash on it.
func TestCompletionDataOfSendsOnly(t *testing.T) {
	for name, want := range map[string]int{"cxi": 0, "opx": 0, "tcp;ofi_rxm": 0, "psm3": 4, "shm": 4} {
		assert.Equal(t, want, cqDataSize(name, 4), name)
	}
}
