//go:build linux && cgo

package main

import (
	"cmp"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
)

func libfabric() string { return "libfabric " + cmp.Or(ofi.LibraryVersion(), "not found") }
