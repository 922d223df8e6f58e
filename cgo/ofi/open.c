//go:build linux && cgo

#include "shim.h"

#ifdef OFI_LOADS

#include "load.h"

int ofi_fabric(struct fi_info *info, struct fid_fabric **fabric)
{
	return ofi_exports.fabric(info->fabric_attr, fabric, NULL);
}

int ofi_domain(struct fid_fabric *fabric, struct fi_info *info,
	       struct fid_domain **domain)
{
	return fi_domain(fabric, info, domain, NULL);
}

int ofi_cq_open(struct fid_domain *domain, size_t size, int with_fd,
		struct fid_cq **cq)
{
	struct fi_cq_attr attr = {
		.size = size,
		.format = FI_CQ_FORMAT_DATA,
		.wait_obj = with_fd ? FI_WAIT_FD : FI_WAIT_NONE,
	};

	return fi_cq_open(domain, &attr, cq, NULL);
}

int ofi_cq_getwait(struct fid_cq *cq, int *fd)
{
	return fi_control(&cq->fid, FI_GETWAIT, fd);
}

int ofi_av_open(struct fid_domain *domain, struct fid_av **av)
{
	struct fi_av_attr attr = { .type = FI_AV_TABLE };

	return fi_av_open(domain, &attr, av, NULL);
}

int ofi_av_insert(struct fid_av *av, const void *name, uint64_t *addr)
{
	return fi_av_insert(av, name, 1, addr, 0, NULL);
}

int ofi_av_remove(struct fid_av *av, uint64_t addr)
{
	return fi_av_remove(av, &addr, 1, 0);
}

int ofi_endpoint(struct fid_domain *domain, struct fi_info *info,
		 struct fid_ep **ep)
{
	return fi_endpoint(domain, info, ep, NULL);
}

int ofi_ep_bind(struct fid_ep *ep, struct fid_cq *cq, struct fid_av *av)
{
	int ret = fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV);

	return ret ? ret : fi_ep_bind(ep, &av->fid, 0);
}

int ofi_enable(struct fid_ep *ep) { return fi_enable(ep); }

int ofi_getname(struct fid_ep *ep, void *name, size_t *size)
{
	return fi_getname(&ep->fid, name, size);
}

enum { MAX_MSG_SIZE = 12 }; // FI_OPT_MAX_MSG_SIZE, which headers before 1.22 lack

int ofi_get_max_msg_size(struct fid_ep *ep, size_t *size)
{
	size_t len = sizeof(*size);

	return fi_getopt(&ep->fid, FI_OPT_ENDPOINT, MAX_MSG_SIZE, size, &len);
}

int ofi_mr_reg(struct fid_domain *domain, const void *buf, size_t len,
	       uint64_t access, uint64_t key, struct fid_mr **mr)
{
	return fi_mr_reg(domain, buf, len, access, 0, key, 0, mr, NULL);
}

int ofi_mr_bind(struct fid_mr *mr, struct fid_ep *ep)
{
	return fi_mr_bind(mr, &ep->fid, 0);
}

int ofi_mr_enable(struct fid_mr *mr) { return fi_mr_enable(mr); }

uint64_t ofi_mr_key(struct fid_mr *mr) { return fi_mr_key(mr); }

uintptr_t ofi_mr_desc(struct fid_mr *mr) { return (uintptr_t)fi_mr_desc(mr); }

int ofi_close(void *fid) { return fi_close(fid); }

#endif
