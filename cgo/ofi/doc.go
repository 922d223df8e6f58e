// Package ofi is a thin binding of libfabric's reliable datagram endpoints: discovery, an endpoint
// with its domain, address vector and completion queue, memory registration, and a data path that
// posts a batch of operations and reaps a batch of completions in one call into C. It holds no
// policy. It needs Linux and cgo; elsewhere only the errors are left of it.
//
// libfabric is loaded when it is first needed, and never unloaded. The file is the one that
// RDMANET_LIBFABRIC names, or else libfabric.so.1 from where the dynamic linker looks, ld.so(8), or
// from where EFA's installer puts it. Loading takes glibc, in a program that is not static. The
// library may be any version from 1.17 on, older or newer than the headers that the package was
// compiled with. Without libfabric, or if the package was compiled without its headers, GetInfo
// fails with a *LoadError.
//
// In a program with more rights than its user, setuid or by capabilities of its file, this package
// removes the variables by which that user could choose code or files from the environment, before
// main begins. Variables that the program sets itself count.
//
// Memory handed to libfabric must not be Go heap: except for injects, it stays in use after the
// call that hands it over, and goroutines' stacks move.
package ofi
