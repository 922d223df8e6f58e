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

const (
	// sharedVar has ofi_rxm receive from all peers on one queue.
	sharedVar = "FI_OFI_RXM_USE_SRX"
	// sharedEntries is how many entries that has.
	sharedEntries = 4096
)

// prepareForDevices chooses settings of libfabric's by what the RDMA devices of this
// machine can do.
func prepareForDevices() {
	if devices, err := os.ReadDir("/sys/class/infiniband"); err != nil || len(devices) == 0 {
		return
	}
	var limits C.struct_ofi_device_limits
	C.ofi_query_devices(&limits)
	if size := universeFor(int(limits.cq)); size != "" {
		setenv(universeVar, size)
	}
	// With a queue for each peer, ofi_rxm (1.17 to 2.6) ends the process when a
	// connection is closed of which it has not looked at all messages: it posts
	// their receives again, to an endpoint that is gone (rxm_close_conn).
	if limits.srq >= sharedEntries {
		setenv(sharedVar, "1")
	}
}

// universeFor is the number of peers for whom ofi_rxm can make a completion queue
// of so many entries, "" if libfabric's own will do. With more than a small device has
// room for, such as Soft-RoCE, fi_enable fails.
func universeFor(entries int) string {
	if entries <= 0 || entries >= universeDefault*entriesPerPeer {
		return ""
	}
	return strconv.Itoa(max(1, entries/entriesPerPeer))
}
