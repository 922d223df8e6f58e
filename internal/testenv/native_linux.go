//go:build linux && cgo

package testenv

import (
	"strings"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
)

// Native is the provider that offers reliable datagrams over TCP connections by itself,
// without ofi_rxm. In libfabric 1.17 that is a provider of its own, net; later it is a part of tcp.
var Native = native()

func native() string {
	if strings.HasPrefix(ofi.LibraryVersion(), "1.17.") {
		return "net"
	}
	return "tcp"
}
