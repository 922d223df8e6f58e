//go:build !amd64 || asan

package pool

func copyPast(dst, b []byte) int { return copy(dst, b) }
