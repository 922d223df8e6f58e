#ifndef FABRICNET_OFI_DEVICES_H
#define FABRICNET_OFI_DEVICES_H

// The number of entries of the largest completion queue that every RDMA device
// here can make; 0 if there is none or nothing tells.
int ofi_smallest_cq(void);

#endif
