//go:build linux && cgo

package ofi

// #include "devices.h"
import "C"

// DeviceLimits are the entries of the largest queues that every RDMA device of this
// machine can make: completion queues, and shared receive queues, of which some devices
// have none (0). They are negative if there is no device or nothing tells
// (ibv_query_device of libibverbs).
func DeviceLimits() (cq, srq int) {
	var limits C.struct_ofi_device_limits
	C.ofi_query_devices(&limits)
	return int(limits.cq), int(limits.srq)
}
