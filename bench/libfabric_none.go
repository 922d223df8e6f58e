//go:build !linux || !cgo

package main

func libfabric() string { return "built without libfabric" }

func libfabricVersions() (compiled, inUse string) { return "", "" }
