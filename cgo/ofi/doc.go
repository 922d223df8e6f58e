// Package ofi is a thin binding of libfabric's reliable datagram endpoints:
// discovery, an endpoint with its domain, address vector and completion
// queue, memory registration, and a data path that posts a batch of
// operations and reaps a batch of completions in one call into C. It holds no
// policy. It needs Linux and cgo; elsewhere only Errno is left of it.
//
// libfabric is loaded when it is first needed, from the file that RDMANET_LIBFABRIC
// names, else as libfabric.so.1 from where the dynamic linker looks, ld.so(8), or from
// where EFA's installer puts it; and never unloaded. That takes glibc. It may be any
// version from 1.17 on, older or newer than the headers that the package was compiled
// with. Without libfabric, or compiled without its headers, GetInfo fails with a
// *LoadError.
//
// Memory handed to libfabric must not be Go heap: it stays in use after the
// call that hands it over, but for that of injects, and goroutines' stacks move.
package ofi
