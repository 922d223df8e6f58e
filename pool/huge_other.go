//go:build unix && !linux

package pool

func adviseHuge([]byte) {}
