//go:build linux && cgo

package ofi

// #include "shim.h"
import "C"

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"math"
	"syscall"
	"unsafe"
)

// Access says what a region is registered for, the access flags of fi_mr(3).
type Access uint64

const (
	// AccessLocal is for the buffers of this side's own operations.
	AccessLocal Access = C.OFI_FI_SEND | C.OFI_FI_RECV | C.OFI_FI_WRITE
	// AccessRemoteWrite lets peers write.
	AccessRemoteWrite Access = C.OFI_FI_REMOTE_WRITE
)

// keyAttempts bounds the search for a key that is not in use.
const keyAttempts = 8

// Region is registered memory, struct fid_mr.
type Region struct {
	ep   *Endpoint
	mr   *C.struct_fid_mr
	base uint64
}

// Register registers memory outside the Go heap (fi_mr_reg; fi_mr_bind and fi_mr_enable if the
// provider asks for FI_MR_ENDPOINT). The provider chooses the key if it wants to (FI_MR_PROV_KEY);
// otherwise it is random, since the key is all that keeps other peers out. Errors wrap Errno.
func (ep *Endpoint) Register(mem []byte, access Access) (*Region, error) {
	if ep.abandoned.Load() {
		return nil, ErrAbandoned
	}
	if len(mem) == 0 {
		return nil, callError("fi_mr_reg", -C.EINVAL)
	}
	ep.lockRegions()
	defer ep.unlockRegions()
	start := unsafe.Pointer(unsafe.SliceData(mem))
	r := &Region{ep: ep}
	if ep.info.mrMode(C.OFI_FI_MR_VIRT_ADDR) {
		r.base = uint64(uintptr(start))
	}
	for attempt := 1; ; attempt++ {
		ret := C.ofi_mr_reg(ep.domain, start, C.size_t(len(mem)), C.uint64_t(access), ep.newKey(), &r.mr)
		if ret == 0 {
			break
		}
		if Errno(-ret) != ErrNoKey || attempt == keyAttempts {
			return nil, callError("fi_mr_reg", ret)
		}
	}
	if err := ep.enableRegion(r, access); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// newKey returns 64 random bits, or as many as the provider's keys have. It returns 0 if the
// provider chooses.
func (ep *Endpoint) newKey() C.uint64_t {
	if ep.info.mrMode(C.OFI_FI_MR_PROV_KEY) {
		return 0
	}
	var key [8]byte
	rand.Read(key[:])
	v := binary.NativeEndian.Uint64(key[:])
	if size := ep.info.attr.mr_key_size; size > 0 && size < 8 {
		v &= 1<<(8*size) - 1
	}
	return C.uint64_t(v)
}

func (ep *Endpoint) enableRegion(r *Region, access Access) error {
	if ep.info.EndpointMR() {
		if ret := C.ofi_mr_bind(r.mr, ep.ep); ret != 0 {
			return callError("fi_mr_bind", ret)
		}
		if ret := C.ofi_mr_enable(r.mr); ret != 0 {
			return callError("fi_mr_enable", ret)
		}
	}
	if access&AccessRemoteWrite != 0 && r.Key() == math.MaxUint64 {
		// FI_KEY_NOTAVAIL: only a raw key would do (FI_MR_RAW), which nobody asked for.
		return &CallError{Call: "fi_mr_key", Errno: Errno(syscall.ENOTSUP)}
	}
	return nil
}

// Desc returns the local descriptor for operations on the memory (fi_mr_desc).
func (r *Region) Desc() uintptr { return uintptr(C.ofi_mr_desc(r.mr)) }

// Key returns the protection key that peers name (fi_mr_key). From libfabric 2.4 on, a region for
// local use only has none (ofi_mr_regattr).
func (r *Region) Key() uint64 { return uint64(C.ofi_mr_key(r.mr)) }

// Base returns the address of the first byte for peers: its virtual address if the provider works
// with those (FI_MR_VIRT_ADDR), else 0.
func (r *Region) Base() uint64 { return r.base }

// Close withdraws the registration (fi_close).
func (r *Region) Close() error {
	if r.ep.abandoned.Load() {
		return nil
	}
	r.ep.lockRegions()
	defer r.ep.unlockRegions()
	return r.close()
}

func (r *Region) close() error {
	if ret := C.ofi_close(unsafe.Pointer(r.mr)); ret != 0 {
		return callError("fi_close of the memory region", ret)
	}
	return nil
}

func (ep *Endpoint) lockRegions() {
	if ep.options.LockRegions {
		ep.regions.Lock()
	}
}

func (ep *Endpoint) unlockRegions() {
	if ep.options.LockRegions {
		ep.regions.Unlock()
	}
}
