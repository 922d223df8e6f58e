//go:build linux && cgo

#include "shim.h"

#ifdef OFI_LOADS

#include "load.h"

#include <stdlib.h>
#include <string.h>

#define SAME(name, number) \
	_Static_assert((uint64_t)(name) == (number), #name " has another value");
OFI_VALUES(SAME)

static char *copy(const char *s) { return s ? strdup(s) : NULL; }

// Asks for what shim.c and open.c rely on: contexts of that size, address tables, and calls from
// any thread. Only the library allocates a struct fi_info, since it knows how long its members are.
struct fi_info *ofi_hints(const struct ofi_hints *want)
{
	struct fi_info *hints = ofi_exports.dupinfo(NULL); // fi_allocinfo

	if (!hints)
		return NULL;
	hints->caps = FI_MSG | FI_RMA;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->threading = FI_THREAD_SAFE;
	hints->domain_attr->av_type = FI_AV_TABLE;
	hints->domain_attr->mr_mode = want->mr_mode;
	hints->domain_attr->cq_data_size = want->cq_data_size;
	hints->tx_attr->msg_order = want->order;
	hints->rx_attr->msg_order = want->order;
	hints->tx_attr->size = want->tx_size;
	hints->rx_attr->size = want->rx_size;
	hints->tx_attr->op_flags = want->op_flags;
	hints->fabric_attr->prov_name = copy(want->provider);
	hints->fabric_attr->name = copy(want->fabric);
	return hints;
}

int ofi_getinfo(uint32_t version, const char *source,
		const struct fi_info *hints, struct fi_info **list)
{
	return ofi_exports.getinfo(version, source, NULL, source ? FI_SOURCE : 0,
				   hints, list);
}

struct fi_info *ofi_dupinfo(const struct fi_info *info)
{
	return ofi_exports.dupinfo(info);
}

void ofi_freeinfo(struct fi_info *info) { ofi_exports.freeinfo(info); }

struct fi_info *ofi_nextinfo(const struct fi_info *info) { return info->next; }

static void describe_nic(const struct fid_nic *nic, struct ofi_info *to)
{
	const struct fi_pci_attr *pci;

	if (nic->link_attr)
		to->link = nic->link_attr->address;
	if (!nic->bus_attr || nic->bus_attr->bus_type != FI_BUS_PCI)
		return;
	pci = &nic->bus_attr->attr.pci;
	to->has_pci = 1;
	to->pci_domain = pci->domain_id;
	to->pci_bus = pci->bus_id;
	to->pci_device = pci->device_id;
	to->pci_function = pci->function_id;
}

void ofi_describe(const struct fi_info *info, struct ofi_info *to)
{
	*to = (struct ofi_info){
		.provider = info->fabric_attr->prov_name,
		.fabric = info->fabric_attr->name,
		.domain = info->domain_attr->name,
		.src_addr = info->src_addr,
		.src_addrlen = info->src_addrlen,
		.order = info->tx_attr->msg_order,
		.max_msg_size = info->ep_attr->max_msg_size,
		.inject_size = info->tx_attr->inject_size,
		.tx_size = info->tx_attr->size,
		.rx_size = info->rx_attr->size,
		.cq_data_size = info->domain_attr->cq_data_size,
		.mr_key_size = info->domain_attr->mr_key_size,
		.addr_format = info->addr_format,
		.protocol = info->ep_attr->protocol,
		.protocol_version = info->ep_attr->protocol_version,
		.mr_mode = info->domain_attr->mr_mode,
	};
	if (info->nic)
		describe_nic(info->nic, to);
}

#endif
