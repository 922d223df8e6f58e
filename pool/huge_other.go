//go:build !linux

package pool

func adviseHuge([]byte) {}

func adviseSmall([]byte) {}

func populate(mem []byte) { touch(mem) }
