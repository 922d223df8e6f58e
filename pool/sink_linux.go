package pool

import (
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sinkSize is what the sink takes, in bytes: as much as the slabs that it replaces usually
// have at most, so that one mapping replaces each (vm.max_map_count).
const sinkSize = 2 << 20

// sink is the memory behind the retired slabs of this process (see Slab.Retire): one piece
// that lies at the addresses of all of them. Whatever is still written there, by however
// many peers, takes no more than sinkSize, and nobody ever reads it. It takes no memory before
// it is written to.
var sink = sync.OnceValues(func() ([]byte, error) {
	return unix.Mmap(-1, 0, sinkSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_SHARED|unix.MAP_NORESERVE)
})

// mapSink maps the sink over all of mem, in one step for each sinkSize: mremap(2) of a shared
// mapping with an old size of 0 makes a second mapping of it. The old pages of mem are gone.
func mapSink(mem []byte) error {
	sink, err := sink()
	for err == nil && len(mem) > 0 {
		n := min(len(mem), sinkSize)
		_, err = unix.MremapPtr(unsafe.Pointer(unsafe.SliceData(sink)), 0,
			unsafe.Pointer(unsafe.SliceData(mem)), uintptr(n), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED)
		mem = mem[n:]
	}
	return err
}
