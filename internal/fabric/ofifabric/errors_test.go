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
	assert.True(t, offersDelivery(wanted{Hints: ofi.Hints{Provider: "tcp;ofi_rxm"}}))
	assert.False(t, offersDelivery(wanted{Hints: ofi.Hints{Provider: "ofi_rxm"}}))
}
