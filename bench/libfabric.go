//go:build linux && cgo

package main

import (
	"cmp"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
)

func libfabric() string { return "libfabric " + cmp.Or(ofi.LibraryVersion(), "not found") }

// libfabricVersions returns the versions that this program was compiled with and uses.
func libfabricVersions() (compiled, inUse string) { return ofi.CompiledVersion(), ofi.LibraryVersion() }
