// For sources that are compiled with libfabric's headers: the headers, and the functions that the
// library exports. All other functions in the headers are inline, and call through tables of
// function pointers.

#ifndef FABRICNET_OFI_LOAD_H
#define FABRICNET_OFI_LOAD_H

#include "shim.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

struct ofi_exports {
	__typeof__(fi_getinfo) *getinfo;
	__typeof__(fi_freeinfo) *freeinfo;
	__typeof__(fi_dupinfo) *dupinfo;
	__typeof__(fi_fabric) *fabric;
	__typeof__(fi_version) *version;
	__typeof__(fi_tostr) *tostr;
};
extern __attribute__((visibility("hidden"))) struct ofi_exports ofi_exports;

#endif
