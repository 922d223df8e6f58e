//go:build linux && cgo

package ofi

// #include "shim.h"
import "C"

import (
	"errors"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Limits of the depths of the endpoint's tables, in operations. A provider's own depths are cut to
// MaxDepth.
const (
	MaxDepth = 1024
	minDepth = 16
)

// Endpoint is an enabled endpoint with its own fabric, domain, address vector and completion queue.
// Its methods may be called concurrently, except that only one goroutine at a time may reap and
// that Close comes last.
type Endpoint struct {
	fabric *C.struct_fid_fabric
	domain *C.struct_fid_domain
	av     *C.struct_fid_av
	cq     *C.struct_fid_cq
	ep     *C.struct_fid_ep
	port   *C.struct_ofi_port

	info    Info
	options Options
	name    []byte
	waitFD  int
	txDepth int
	rxDepth int

	abandoned atomic.Bool

	regions sync.RWMutex // see Options.LockRegions
}

// Options are for differences between providers that no Info shows. The zero value does nothing
// special.
type Options struct {
	// Guarded: calls of Exchange may hang in the library, and can be got out of it by
	// Abandon.
	Guarded bool
	// LockRegions keeps the set of regions from changing during Exchange, which looks regions up.
	LockRegions bool
	// SlashOwn is what the names of this process's endpoints begin with, if names are text. Those
	// names are inserted with a slash after the scheme, which shm_open(3) ignores. With "" all
	// names are inserted as they are.
	SlashOwn string
}

// Open opens an endpoint (fi_fabric, fi_domain, fi_cq_open, fi_av_open, fi_endpoint, fi_ep_bind,
// fi_enable). It keeps a copy of info. Signal dispositions that the provider changes meanwhile are
// restored. Errors wrap Errno.
func Open(info Info, options Options) (*Endpoint, error) {
	restore := holdSignals()
	defer restore()
	ep := &Endpoint{options: options, waitFD: -1}
	c := C.ofi_dupinfo(info.c)
	if c == nil {
		return nil, callError("fi_dupinfo", -C.ENOMEM)
	}
	ep.info = newInfo(c)
	for _, step := range []func() error{
		ep.openDomain, ep.openCQ, ep.openAV, ep.openEndpoint, ep.openPort,
	} {
		if err := step(); err != nil {
			return nil, errors.Join(err, ep.Close())
		}
	}
	return ep, nil
}

func (ep *Endpoint) openDomain() error {
	if ret := C.ofi_fabric(ep.info.c, &ep.fabric); ret != 0 {
		return callError("fi_fabric", ret)
	}
	if ret := C.ofi_domain(ep.fabric, ep.info.c, &ep.domain); ret != 0 {
		return callError("fi_domain", ret)
	}
	return nil
}

func (ep *Endpoint) openEndpoint() error {
	if ret := C.ofi_endpoint(ep.domain, ep.info.c, &ep.ep); ret != 0 {
		return callError("fi_endpoint", ret)
	}
	if ret := C.ofi_ep_bind(ep.ep, ep.cq, ep.av); ret != 0 {
		return callError("fi_ep_bind", ret)
	}
	if ret := C.ofi_enable(ep.ep); ret != 0 {
		return callError("fi_enable", ret)
	}
	return ep.readName()
}

func (ep *Endpoint) openPort() error {
	guarded := C.int(0)
	if ep.options.Guarded {
		guarded = 1
	}
	ep.port = C.ofi_port_new(ep.fabric, ep.ep, ep.cq, ep.info.c,
		C.uint32_t(ep.txDepth), C.uint32_t(ep.rxDepth), guarded)
	if ep.port == nil {
		return callError("calloc", -C.ENOMEM)
	}
	return nil
}

// Info describes the endpoint as it was opened. It is valid until Close.
func (ep *Endpoint) Info() Info { return ep.info }

// TxDepth returns the number of operations that can be in flight besides receives and injects.
func (ep *Endpoint) TxDepth() int { return ep.txDepth }

// RxDepth returns the number of receives that can be posted.
func (ep *Endpoint) RxDepth() int { return ep.rxDepth }

// MaxSend returns the length of the longest send in bytes (fi_getopt with FI_OPT_MAX_MSG_SIZE).
// efa-direct takes far longer writes. Providers that do not know the option take sends of up to
// Info.MaxMsgSize.
func (ep *Endpoint) MaxSend() uint64 {
	var size C.size_t
	if C.ofi_get_max_msg_size(ep.ep, &size) != 0 || size == 0 {
		return ep.info.MaxMsgSize()
	}
	return min(uint64(size), ep.info.MaxMsgSize())
}

// Shutdown closes only the endpoint itself (fi_close). Afterwards the provider touches no buffer
// that was posted, so memory can be deregistered and unmapped before Close. Nothing may be posted
// or reaped any more. If regions are bound to the endpoint, they have to be closed first, and
// Shutdown does nothing.
func (ep *Endpoint) Shutdown() error {
	if ep.abandoned.Load() || ep.ep == nil || ep.info.EndpointMR() {
		return nil
	}
	if ret := C.ofi_close(unsafe.Pointer(ep.ep)); ret != 0 {
		return callError("fi_close of the endpoint", ret)
	}
	ep.ep = nil
	return nil
}

// Close closes everything that Open opened (fi_close). All regions must have been closed before. If
// the provider refuses to let go of something, Close leaves the rest alone and returns the error:
// what libfabric still uses must not be freed.
func (ep *Endpoint) Close() error {
	if ep.abandoned.Load() {
		return nil
	}
	if ep.ep != nil {
		if ret := C.ofi_close(unsafe.Pointer(ep.ep)); ret != 0 {
			return callError("fi_close of the endpoint", ret)
		}
		ep.ep = nil
	}
	if ep.cq != nil {
		if ret := C.ofi_close(unsafe.Pointer(ep.cq)); ret != 0 {
			return callError("fi_close of the completion queue", ret)
		}
		ep.cq = nil
	}
	if ep.port != nil {
		C.ofi_port_free(ep.port)
		ep.port = nil
	}
	if ep.av != nil {
		if ret := C.ofi_close(unsafe.Pointer(ep.av)); ret != 0 {
			return callError("fi_close of the address vector", ret)
		}
		ep.av = nil
	}
	if ep.domain != nil {
		if ret := C.ofi_close(unsafe.Pointer(ep.domain)); ret != 0 {
			return callError("fi_close of the domain", ret)
		}
		ep.domain = nil
	}
	if ep.fabric != nil {
		if ret := C.ofi_close(unsafe.Pointer(ep.fabric)); ret != 0 {
			return callError("fi_close of the fabric", ret)
		}
		ep.fabric = nil
	}
	if ep.info.c != nil {
		C.ofi_freeinfo(ep.info.c)
		ep.info = Info{}
	}
	return nil
}

// callError turns a function's negative return value into an error.
func callError(call string, ret C.int) error {
	return &CallError{Call: call, Errno: Errno(-ret)}
}
