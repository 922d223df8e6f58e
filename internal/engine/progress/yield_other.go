//go:build !linux

package progress

func yieldThread() {}
