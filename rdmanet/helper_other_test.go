//go:build !linux || !cgo

package rdmanet_test

import (
	"io/fs"
	"testing"
)

var realProviders []string

func heldByOthers(*testing.T) map[string]bool { return nil }

func inode(fs.FileInfo) string { return "" }
