#ifndef FABRICNET_OFI_DEVICES_H
#define FABRICNET_OFI_DEVICES_H

// The number of entries of the largest queues that every RDMA device here can
// make: completion queues, and shared receive queues, of which some devices have
// none. They are negative if there is no device or nothing tells.
struct ofi_device_limits {
	int cq, srq;
};
__attribute__((visibility("hidden")))
void ofi_query_devices(struct ofi_device_limits *limits);

#endif
