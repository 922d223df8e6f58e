//go:build unix

package pool

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapMemory maps size bytes of zeroes, page-aligned, outside the Go heap.
func mapMemory(size int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err == nil {
		adviseHuge(mem)
	}
	return mem, err
}

// blockMemory gives memory back and keeps its addresses from being used again.
func blockMemory(mem []byte) error { return replaceMemory(mem, unix.PROT_NONE) }

// emptyMemory replaces mem by zeroes, of which none are there before they are used.
func emptyMemory(mem []byte) error { return replaceMemory(mem, unix.PROT_READ|unix.PROT_WRITE) }

func replaceMemory(mem []byte, prot int) error {
	_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)),
		prot, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE|unix.MAP_FIXED)
	return err
}

func unmapMemory(mem []byte) error { return unix.Munmap(mem) }
