//go:build linux && cgo

package ofi

// #include "devices.h"
// #include "shim.h"
import "C"

// DeviceLimits returns how many entries the largest queues have that every RDMA device of this
// machine can make: completion queues, and shared receive queues. srq is 0 if some device has no
// shared receive queues. Both are negative if there is no device, or no way to ask
// (ibv_query_device of libibverbs).
func DeviceLimits() (cq, srq int) {
	if C.ofi_static() != 0 {
		return -1, -1
	}
	var limits C.struct_ofi_device_limits
	C.ofi_query_devices(&limits)
	return int(limits.cq), int(limits.srq)
}
