//go:build linux && cgo

package main

import "github.com/seed202c38ff/fabricnet/cgo/ofi"

func libfabric() string { return "libfabric " + ofi.LibraryVersion() }
