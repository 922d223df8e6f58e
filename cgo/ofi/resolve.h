#ifndef FABRICNET_OFI_RESOLVE_H
#define FABRICNET_OFI_RESOLVE_H

// rdma_resolve_addr(3) from one IP socket address to another, which waits for the answer
// for so many milliseconds. Returns a negative error number, 0 also if there is nobody to
// ask.
__attribute__((visibility("hidden")))
int ofi_resolve(const void *from, const void *to, int milliseconds);

#endif
