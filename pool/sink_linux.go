package pool

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// newSink maps memory that mapSink can map again. It takes no memory before it is
// written to.
func newSink(size int) ([]byte, error) {
	return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_SHARED|unix.MAP_NORESERVE)
}

// mapSink maps the sink's memory over all of mem, in one step for each sinkSize:
// mremap(2) of a shared mapping with an old size of 0 makes a second mapping of it. The
// old pages of mem are gone.
func mapSink(sink, mem []byte) error {
	for len(mem) > 0 {
		n := min(len(mem), len(sink))
		_, err := unix.MremapPtr(unsafe.Pointer(unsafe.SliceData(sink)), 0,
			unsafe.Pointer(unsafe.SliceData(mem)), uintptr(n), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED)
		if err != nil {
			return err
		}
		mem = mem[n:]
	}
	return nil
}
