// Package ofi is a thin binding of libfabric's reliable datagram endpoints:
// discovery, an endpoint with its domain, address vector and completion
// queue, memory registration, and a data path that posts a batch of
// operations and reaps a batch of completions in one call into C. It holds no
// policy. It needs Linux and cgo; elsewhere only Errno is left of it.
//
// Memory handed to libfabric must not be Go heap: it stays in use after the
// call that hands it over. Inject operations are the exception.
package ofi
