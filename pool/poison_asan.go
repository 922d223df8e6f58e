//go:build asan

package pool

// #include <sanitizer/asan_interface.h>
import "C"

import "unsafe"

// AddressSanitizer knows nothing of mapped memory, so it is told: what is free
// here is not to be touched, by the fabric as little as by us.

// poison has every access to mem reported, until unpoison.
func poison(mem []byte) {
	C.__asan_poison_memory_region(unsafe.Pointer(unsafe.SliceData(mem)), C.size_t(len(mem)))
}

func unpoison(mem []byte) {
	C.__asan_unpoison_memory_region(unsafe.Pointer(unsafe.SliceData(mem)), C.size_t(len(mem)))
}
