//go:build linux && cgo

package rdmanet_test

import (
	"fmt"
	"os"
)

// realProviders are those that every machine with libfabric 1.17 has.
var realProviders = []string{"shm", "tcp;ofi_rxm", "net"}

// pidPrefix begins the names of libfabric's shared memory in this process.
func pidPrefix() string { return fmt.Sprintf("%d:", os.Getpid()) }
