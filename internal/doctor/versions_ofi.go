//go:build linux && cgo

package doctor

import (
	"cmp"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
)

func versions() (compiled, library, file string) {
	return ofi.CompiledVersion(), ofi.LibraryVersion(), ofi.LibraryPath()
}

// Library names libfabric and its version, or says that there is none.
func Library() string { return "libfabric " + cmp.Or(ofi.LibraryVersion(), "not found") }
