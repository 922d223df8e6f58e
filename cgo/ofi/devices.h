#ifndef FABRICNET_OFI_DEVICES_H
#define FABRICNET_OFI_DEVICES_H

// How many entries the largest queues have that every RDMA device here can make: completion queues,
// and shared receive queues. srq is 0 if some device has no shared receive queues. Both are
// negative if there is no device, or no way to ask.
struct ofi_device_limits {
	int cq, srq;
};
__attribute__((visibility("hidden")))
void ofi_query_devices(struct ofi_device_limits *limits);

#endif
