//go:build linux && cgo

package doctor

import "github.com/seed202c38ff/fabricnet/cgo/ofi"

func versions() (compiled, library, file string) {
	return ofi.CompiledVersion(), ofi.LibraryVersion(), ofi.LibraryPath()
}
