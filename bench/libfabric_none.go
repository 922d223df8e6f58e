//go:build !linux || !cgo

package main

func libfabric() string { return "built without libfabric" }
