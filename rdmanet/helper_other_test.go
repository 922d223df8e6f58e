//go:build !linux || !cgo

package rdmanet_test

var realProviders []string

func pidPrefix() string { return "no shared memory" }
