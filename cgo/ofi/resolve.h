#ifndef FABRICNET_OFI_RESOLVE_H
#define FABRICNET_OFI_RESOLVE_H

// rdma_resolve_addr(3) from one IP socket address to another. Waits for the answer for at most that
// many milliseconds. Returns 0 or a negative error number; 0 also if there is no library or device
// to ask.
__attribute__((visibility("hidden")))
int ofi_resolve(const void *from, const void *to, int milliseconds);

#endif
