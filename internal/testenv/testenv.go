// Package testenv says over which providers and at which address tests run, so
// that they can also run on the devices of other machines.
package testenv

import (
	"net"
	"os"
	"slices"
	"strings"
)

// Environment variables, for a device at an address of its own:
//
//	RDMANET_TEST_PROVIDERS="verbs;ofi_rxm" RDMANET_TEST_HOST=10.9.0.1 go test ./rdmanet
const (
	providersVar = "RDMANET_TEST_PROVIDERS" // separated by commas
	hostVar      = "RDMANET_TEST_HOST"
)

// Providers lists the real providers to test: those that every machine with
// libfabric has, unless RDMANET_TEST_PROVIDERS names others.
func Providers() []string {
	if list := os.Getenv(providersVar); list != "" {
		return strings.Split(list, ",")
	}
	return []string{"shm", "tcp;ofi_rxm", Native}
}

// Shared lists those of Providers whose endpoints are shared by many peers, and have
// something to wait on.
func Shared() []string {
	return slices.DeleteFunc(Providers(), func(name string) bool { return name == "shm" })
}

// Host returns the IP address at which servers listen.
func Host() string {
	if host := os.Getenv(hostVar); host != "" {
		return host
	}
	return "127.0.0.1"
}

// Address returns the address of any free port of Host.
func Address() string { return net.JoinHostPort(Host(), "0") }
