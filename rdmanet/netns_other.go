//go:build !linux

package rdmanet

func threadNetns() netns { return 0 }
