//go:build !unix

package pool

import (
	"os"
	"unsafe"
)

// mapMemory returns page-aligned memory of the Go heap: no fabric runs here, so
// nothing but Go code ever touches it.
func mapMemory(size int) ([]byte, error) {
	page := os.Getpagesize()
	mem := make([]byte, size+page)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) & (page - 1)
	return mem[skip : skip+size : skip+size], nil
}

func unmapMemory([]byte) error { return nil }
