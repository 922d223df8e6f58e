//go:build asan

package pool

// #include <sanitizer/asan_interface.h>
import "C"

import "unsafe"

// AddressSanitizer knows nothing about mapped memory, so it is told: memory that is
// free here must not be touched, neither by the fabric nor by us.

// poison makes AddressSanitizer report every access to mem, until unpoison.
func poison(mem []byte) {
	C.__asan_poison_memory_region(unsafe.Pointer(unsafe.SliceData(mem)), C.size_t(len(mem)))
}

func unpoison(mem []byte) {
	C.__asan_unpoison_memory_region(unsafe.Pointer(unsafe.SliceData(mem)), C.size_t(len(mem)))
}
