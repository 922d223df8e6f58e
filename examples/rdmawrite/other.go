//go:build !linux || !cgo

package main

import "log"

func main() {
	log.SetFlags(0)
	log.Fatal("rdmawrite: needs Linux, cgo and libfabric")
}
