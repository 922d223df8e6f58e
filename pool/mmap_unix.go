//go:build unix

package pool

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapMemory maps size bytes of zeroes, page-aligned and outside the Go heap.
func mapMemory(size int) ([]byte, error) {
	at, err := unix.MmapPtr(-1, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(at), size), nil
}

// unmapMemory gives the pages back one piece at a time: while munmap(2) does that for all
// of them, nothing else in the process can map or unmap anything.
func unmapMemory(mem []byte) error {
	for rest := mem; len(rest) > piece; rest = rest[piece:] {
		_ = unix.Madvise(rest[:piece], unix.MADV_DONTNEED) // if this fails, munmap does it
		runtime.Gosched()
	}
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)))
}
