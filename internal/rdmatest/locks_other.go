//go:build !linux || !cgo

package rdmatest

import (
	"io/fs"
	"testing"
)

// Providers are none where there is no libfabric.
var Providers []string

func fileLocks(*testing.T) map[string]int { return nil }

// inode has no use without locks.
func inode(fs.FileInfo) string { return "" }
