//go:build unix

package pool

import "golang.org/x/sys/unix"

// mapMemory maps size bytes of zeroes, page-aligned, outside the Go heap.
func mapMemory(size int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err == nil {
		adviseHuge(mem)
	}
	return mem, err
}

func unmapMemory(mem []byte) error { return unix.Munmap(mem) }
