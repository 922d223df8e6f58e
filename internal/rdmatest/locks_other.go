//go:build !linux || !cgo

package rdmatest

import (
	"io/fs"
	"testing"
)

// Providers are none where there is no libfabric.
var Providers []string

func heldBy(*testing.T, func(pid int) bool) map[string]bool { return nil }

// Inode has no use without locks.
func Inode(fs.FileInfo) string { return "" }
