//go:build linux && cgo

package ofi

// #include "devices.h"
import "C"

import (
	"os"
	"strconv"
)

const (
	// universeVar is read by libfabric at its first call: the number of peers to
	// expect.
	universeVar = "FI_UNIVERSE_SIZE"
	// universeDefault is what libfabric takes without it.
	universeDefault = 1024
	// entriesPerPeer is how many entries of a device's completion queue ofi_rxm
	// wants for each of them: fi_rxm(7), FI_OFI_RXM_MSG_TX_SIZE and
	// FI_OFI_RXM_MSG_RX_SIZE.
	entriesPerPeer = 128 + 128
)

// universe is the number of peers for whom ofi_rxm can make a completion queue
// on every RDMA device of this machine, "" if libfabric's own will do. With more
// than a small device has room for, such as Soft-RoCE, fi_enable fails.
func universe() string {
	if devices, err := os.ReadDir("/sys/class/infiniband"); err != nil || len(devices) == 0 {
		return ""
	}
	return universeFor(int(C.ofi_smallest_cq()))
}

func universeFor(entries int) string {
	if entries <= 0 || entries >= universeDefault*entriesPerPeer {
		return ""
	}
	return strconv.Itoa(max(1, entries/entriesPerPeer))
}
