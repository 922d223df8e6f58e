//go:build linux && cgo

package ofi

// #include "shim.h"
import "C"

import (
	"syscall"
	"unsafe"
)

// openCQ opens the completion queue (fi_cq_open), with a descriptor to wait on if the provider has
// one. The queue must have room for everything that can complete: sends and writes, receives, and
// one write by a peer for each receive. If a device does not have as much, the depths are halved.
func (ep *Endpoint) openCQ() error {
	ep.txDepth = min(ep.info.TxSize(), MaxDepth)
	ep.rxDepth = min(ep.info.RxSize(), MaxDepth)
	for {
		err := ep.tryCQ(true)
		if err != nil {
			err = ep.tryCQ(false)
		}
		if err == nil {
			return nil
		}
		if max(ep.txDepth, ep.rxDepth) <= minDepth {
			return err
		}
		ep.txDepth = max(ep.txDepth/2, minDepth)
		ep.rxDepth = max(ep.rxDepth/2, minDepth)
	}
}

func (ep *Endpoint) tryCQ(wait bool) error {
	with := C.int(0)
	if wait {
		with = 1
	}
	if ret := C.ofi_cq_open(ep.domain, C.size_t(ep.txDepth+2*ep.rxDepth), with, &ep.cq); ret != 0 {
		ep.cq = nil
		return callError("fi_cq_open", ret)
	}
	if !wait {
		return nil
	}
	// Some providers accept FI_WAIT_FD but then have no descriptor (rxd).
	fd := C.int(-1)
	if ret := C.ofi_cq_getwait(ep.cq, &fd); ret != 0 {
		C.ofi_close(unsafe.Pointer(ep.cq))
		ep.cq = nil
		return callError("fi_control", ret)
	}
	ep.waitFD = int(fd)
	return nil
}

// WaitFD returns the descriptor that becomes readable when there may be something to reap, -1 if
// the provider has none (fi_control with FI_GETWAIT). It belongs to the endpoint and may be slept
// on only right after TryWait.
func (ep *Endpoint) WaitFD() int { return ep.waitFD }

// TryWait reports whether it is safe to sleep on WaitFD. If not, reap first (fi_trywait).
func (ep *Endpoint) TryWait() (bool, error) {
	switch ret := C.ofi_trywait(ep.port); ret {
	case 0:
		return true, nil
	case -C.int(syscall.EAGAIN):
		return false, nil
	default:
		return false, callError("fi_trywait", ret)
	}
}
