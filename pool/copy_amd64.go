// AddressSanitizer does not see what assembly does: with it, copies are ordinary ones.

//go:build !asan

package pool

import "unsafe"

// copyLines copies lines of 64 bytes to dst, which is aligned to 16 bytes, with
// stores that bypass the caches, and orders them before whatever follows.
//
//go:noescape
func copyLines(dst, src *byte, lines int)

// copyPast copies b to dst and bypasses the caches as far as dst's alignment allows.
func copyPast(dst, b []byte) int {
	const line = 64
	n := min(len(dst), len(b))
	if n < line || uintptr(unsafe.Pointer(&dst[0]))%16 != 0 {
		return copy(dst, b)
	}
	whole := n &^ (line - 1)
	copyLines(&dst[0], &b[0], whole/line)
	return whole + copy(dst[whole:n], b[whole:n])
}
