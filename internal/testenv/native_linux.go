//go:build linux && cgo

package testenv

import (
	"strings"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
)

// Native is the provider that makes reliable datagrams of TCP connections by itself,
// without ofi_rxm. In libfabric 1.17 it is one of its own, later a part of tcp.
var Native = native()

func native() string {
	if strings.HasPrefix(ofi.LibraryVersion(), "1.17.") {
		return "net"
	}
	return "tcp"
}
