//go:build linux && cgo

package ofifabric

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
	"github.com/stretchr/testify/assert"
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
	assert.True(t, offersDelivery(ofi.Hints{Provider: "tcp;ofi_rxm"}))
	assert.False(t, offersDelivery(ofi.Hints{Provider: "ofi_rxm"}))
}

// cxi and opx say that they have completion data, and refuse fi_writedata.
func TestCompletionDataOfSendsOnly(t *testing.T) {
	for name, want := range map[string]int{"cxi": 0, "opx": 0, "psm3": 4, "shm": 4} {
		assert.Equal(t, want, cqDataSize(name, 4), name)
	}
}
