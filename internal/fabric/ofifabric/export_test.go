//go:build linux && cgo

package ofifabric

import "github.com/seed202c38ff/fabricnet/cgo/ofi"

// LibraryBefore reports whether the libfabric in use is older than version.
func LibraryBefore(version string) bool {
	return compareVersions(ofi.LibraryVersion(), version, 2) < 0
}

// SetRandomRegion gives all regions the same number, until undo is called.
func SetRandomRegion(id [16]byte) (undo func()) {
	random := randomRegion
	randomRegion = func() [16]byte { return id }
	return func() { randomRegion = random }
}
