//go:build linux && cgo

package main

import "github.com/seed202c38ff/fabricnet/cgo/ofi"

func libfabric() string { return "libfabric " + ofi.LibraryVersion() }

// libfabricVersions are those that this program was compiled with and uses.
func libfabricVersions() (compiled, inUse string) { return ofi.CompiledVersion(), ofi.LibraryVersion() }
