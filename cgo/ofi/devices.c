// Asks libibverbs what RDMA devices can do. The library is there wherever the verbs provider is,
// but its headers need not be: its functions are looked up by name, and what is declared here is
// their binary interface (ibv_query_device(3)).

#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

#include "devices.h"

struct device_attr {
	char fw_ver[64];
	uint64_t node_guid, sys_image_guid;
	uint64_t max_mr_size, page_size_cap;
	uint32_t vendor_id, vendor_part_id, hw_ver;
	int max_qp, max_qp_wr;
	unsigned int device_cap_flags;
	int max_sge, max_sge_rd;
	int max_cq, max_cqe;
	int max_mr, max_pd;
	int rd_atom[5], atomic_cap; // not used here, like the next ones up to max_srq
	int max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp;
	int max_mcast[3], max_ah, max_fmr, max_map_per_fmr;
	int max_srq, max_srq_wr;
	char rest[1024]; // more than enough: the structure ends before that
};

struct verbs {
	void **(*get_device_list)(int *count);
	void (*free_device_list)(void **list);
	void *(*open_device)(void *device);
	int (*close_device)(void *context);
	int (*query_device)(void *context, struct device_attr *attr);
};

static int least(int a, int b) { return a < 0 || b < a ? b : a; }

static void query(const struct verbs *v, struct ofi_device_limits *l)
{
	int count = 0;
	void **list = v->get_device_list(&count);

	if (!list)
		return;
	for (int i = 0; i < count; i++) {
		struct device_attr attr;
		void *context = v->open_device(list[i]);

		if (!context)
			continue; // this user may not open it
		memset(&attr, 0, sizeof(attr));
		if (!v->query_device(context, &attr)) {
			l->cq = least(l->cq, attr.max_cqe);
			l->srq = least(l->srq, attr.max_srq > 0 ? attr.max_srq_wr : 0);
		}
		v->close_device(context);
	}
	v->free_device_list(list);
}

void ofi_query_devices(struct ofi_device_limits *limits)
{
	struct verbs v;
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);

	limits->cq = limits->srq = -1;
	if (!lib)
		return;
	*(void **)&v.get_device_list = dlsym(lib, "ibv_get_device_list");
	*(void **)&v.free_device_list = dlsym(lib, "ibv_free_device_list");
	*(void **)&v.open_device = dlsym(lib, "ibv_open_device");
	*(void **)&v.close_device = dlsym(lib, "ibv_close_device");
	*(void **)&v.query_device = dlsym(lib, "ibv_query_device");
	if (v.get_device_list && v.free_device_list && v.open_device &&
	    v.close_device && v.query_device)
		query(&v, limits);
	// The library stays: the verbs provider needs it, too.
}
