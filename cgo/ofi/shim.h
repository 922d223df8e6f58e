// All that Go sees of C: plain structures, opaque pointers and thin calls, and no
// policy. Nothing here needs libfabric's headers, so that the package compiles where
// they are missing.

#ifndef FABRICNET_OFI_SHIM_H
#define FABRICNET_OFI_SHIM_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __has_include
#if __has_include(<rdma/fabric.h>) && !defined(OFI_NO_HEADERS)
#define OFI_HEADERS
#endif
#endif

// Programs may export their symbols (-rdynamic). Hidden, these are not taken for those of a
// library, such as a provider's, which also has many that begin with ofi_.
#pragma GCC visibility push(hidden)

// OFI_CALL marks what is defined only if there are headers to compile with and a libc to load with.
// Otherwise nothing calls it, since load.go refuses to load, so a null address will do.
#if defined(OFI_HEADERS) && defined(__GLIBC__)
#define OFI_LOADS
#define OFI_CALL
#else
#define OFI_CALL __attribute__((weak))
#endif

enum {
#ifdef OFI_HEADERS
	OFI_HAS_HEADERS = 1,
#else
	OFI_HAS_HEADERS = 0,
#endif
#ifdef OFI_LOADS
	OFI_HAS_LOADER = 1,
#else
	OFI_HAS_LOADER = 0,
#endif
};

// The values of libfabric's that Go uses, as OFI_FI_... They are part of its binary interface;
// info.c compares them with the headers.
#define OFI_VALUES(value) \
	value(FI_MSG, 1 << 1) \
	value(FI_RMA, 1 << 2) \
	value(FI_WRITE, 1 << 9) \
	value(FI_RECV, 1 << 10) \
	value(FI_SEND, 1 << 11) \
	value(FI_REMOTE_WRITE, 1 << 13) \
	value(FI_DELIVERY_COMPLETE, 1 << 28) \
	value(FI_ORDER_WAW, 1 << 4) \
	value(FI_ORDER_SAW, 1 << 7) \
	value(FI_ORDER_SAS, 1 << 8) \
	value(FI_MR_LOCAL, 1 << 2) \
	value(FI_MR_RAW, 1 << 3) \
	value(FI_MR_VIRT_ADDR, 1 << 4) \
	value(FI_MR_ALLOCATED, 1 << 5) \
	value(FI_MR_PROV_KEY, 1 << 6) \
	value(FI_MR_MMU_NOTIFY, 1 << 7) \
	value(FI_MR_RMA_EVENT, 1 << 8) \
	value(FI_MR_ENDPOINT, 1 << 9) \
	value(FI_MR_HMEM, 1 << 10) \
	value(FI_MR_COLLECTIVE, 1 << 11) \
	value(FI_SOCKADDR, 1) \
	value(FI_SOCKADDR_IN, 2) \
	value(FI_SOCKADDR_IN6, 3) \
	value(FI_SOCKADDR_IB, 4) \
	value(FI_ADDR_STR, 9)

#define OFI_VALUE(name, number) OFI_##name = number,
enum { OFI_VALUES(OFI_VALUE) };

// The library, once ofi_load has returned 0. If it has not, why says what is wrong.
struct ofi_library {
	uint32_t version;   // fi_version
	const char *text;   // the same with all of its numbers, fi_tostr
	const char *path;   // of the file
	int abi;            // its symbols are those of FABRIC_1.abi
	char why[512];
};
OFI_CALL int ofi_load(const char *file, struct ofi_library *lib);
OFI_CALL uint32_t ofi_compiled(void); // the headers' version

// Whether the program is linked statically. Its dlopen may succeed all the same, but what it loads
// comes with a C library of its own, which nobody has set up.
int ofi_static(void);

struct fi_info;
struct fid_fabric;
struct fid_domain;
struct fid_av;
struct fid_cq;
struct fid_ep;
struct fid_mr;

struct ofi_hints {
	const char *provider, *fabric; // or NULL
	uint64_t order, op_flags;
	size_t cq_data_size, tx_size, rx_size;
	int mr_mode;
};

// What Go knows of a struct fi_info, which owns what the pointers point to.
struct ofi_info {
	const char *provider, *fabric, *domain;
	const void *src_addr;
	size_t src_addrlen;
	uint64_t order, max_msg_size;
	size_t inject_size, tx_size, rx_size, cq_data_size, mr_key_size;
	uint32_t addr_format, protocol, protocol_version;
	int mr_mode;
	const char *link;  // of the device, or NULL
	uint8_t has_pci;
	uint8_t pci_bus, pci_device, pci_function;
	uint16_t pci_domain;
};

// Each calls the function of libfabric's that it is named after, and returns what that returns.
// ofi_hints returns a struct fi_info as from fi_allocinfo, filled in.
OFI_CALL struct fi_info *ofi_hints(const struct ofi_hints *want);
OFI_CALL int ofi_getinfo(uint32_t version, const char *source,
			 const struct fi_info *hints, struct fi_info **list);
OFI_CALL struct fi_info *ofi_dupinfo(const struct fi_info *info);
OFI_CALL void ofi_freeinfo(struct fi_info *info);
OFI_CALL struct fi_info *ofi_nextinfo(const struct fi_info *info);
OFI_CALL void ofi_describe(const struct fi_info *info, struct ofi_info *to);

OFI_CALL int ofi_fabric(struct fi_info *info, struct fid_fabric **fabric);
OFI_CALL int ofi_domain(struct fid_fabric *fabric, struct fi_info *info,
			struct fid_domain **domain);
OFI_CALL int ofi_cq_open(struct fid_domain *domain, size_t size, int with_fd,
			 struct fid_cq **cq);
OFI_CALL int ofi_cq_getwait(struct fid_cq *cq, int *fd);
OFI_CALL int ofi_av_open(struct fid_domain *domain, struct fid_av **av);
OFI_CALL int ofi_av_insert(struct fid_av *av, const void *name, uint64_t *addr);
OFI_CALL int ofi_av_remove(struct fid_av *av, uint64_t addr);
OFI_CALL int ofi_endpoint(struct fid_domain *domain, struct fi_info *info,
			  struct fid_ep **ep);
OFI_CALL int ofi_ep_bind(struct fid_ep *ep, struct fid_cq *cq, struct fid_av *av);
OFI_CALL int ofi_enable(struct fid_ep *ep);
OFI_CALL int ofi_getname(struct fid_ep *ep, void *name, size_t *size);
OFI_CALL int ofi_get_max_msg_size(struct fid_ep *ep, size_t *size);
OFI_CALL int ofi_mr_reg(struct fid_domain *domain, const void *buf, size_t len,
			uint64_t access, uint64_t key, struct fid_mr **mr);
OFI_CALL int ofi_mr_bind(struct fid_mr *mr, struct fid_ep *ep);
OFI_CALL int ofi_mr_enable(struct fid_mr *mr);
OFI_CALL uint64_t ofi_mr_key(struct fid_mr *mr);
OFI_CALL uintptr_t ofi_mr_desc(struct fid_mr *mr);
OFI_CALL int ofi_close(void *fid); // any of them

// The data path: post a batch of operations and reap a batch of completions in one
// call.

enum {
	OFI_BATCH_OPS = 32,
	OFI_BATCH_DONE = 64,
};

// Verbs of operations and completions. They equal the Kind constants in Go.
enum {
	OFI_NONE,
	OFI_SEND,
	OFI_INJECT,
	OFI_RECV,
	OFI_WRITE,
	OFI_WRITE_DATA,
	OFI_REMOTE_WRITE,
};

struct ofi_op {
	uintptr_t buf;
	size_t len;
	uintptr_t desc;
	uint64_t to;
	uint64_t remote;
	uint64_t key;
	uint64_t data;
	uint32_t tag;
	uint8_t kind;
	uint8_t deliver;
};

struct ofi_done {
	uint64_t len;
	uint64_t data;
	uint32_t tag;
	int32_t err;       // 0, or a positive fi_errno(3)
	int32_t prov_err;
	uint8_t kind;
};

// A batch lives in C memory for as long as it is used, so that neither Go's garbage collector nor
// cgo's pointer checks are part of the data path.
struct ofi_batch {
	uint32_t nops;     // in: operations to post
	uint32_t ndone;    // in: completions wanted, at most OFI_BATCH_DONE
	uint32_t posted;   // out
	uint32_t reaped;   // out
	int32_t post_err;  // out: of ops[posted], 0 when the queue is full
	int32_t reap_err;  // out: of the queue itself
	struct ofi_op ops[OFI_BATCH_OPS];
	struct ofi_done done[OFI_BATCH_DONE];
};

// A port is an enabled endpoint with its completion queue and the contexts of
// the operations in flight.
struct ofi_port;

OFI_CALL struct ofi_port *
ofi_port_new(struct fid_fabric *fabric, struct fid_ep *ep, struct fid_cq *cq,
	     const struct fi_info *info, uint32_t tx_depth, uint32_t rx_depth,
	     int guarded);
OFI_CALL void ofi_port_free(struct ofi_port *port);

OFI_CALL struct ofi_batch *ofi_batch_new(void);

// Posts until an operation fails or the queue is full, then reaps.
OFI_CALL void ofi_exchange(struct ofi_port *port, struct ofi_batch *batch);

// The calls of ofi_exchange in progress on a guarded port, at most max. The same thread and number
// mean the same call.
struct ofi_call {
	int32_t tid;
	uint64_t number;
};
int ofi_calls(struct ofi_port *port, struct ofi_call *calls, int max);

// ofi_abandon makes all calls on a guarded port fail with EOWNERDEAD from now on, without entering
// the library. ofi_eject then gets out those that are in it. It returns 0, -EBUSY if a call did not
// come out, or another negative error number.
OFI_CALL void ofi_abandon(struct ofi_port *port);
int ofi_eject(struct ofi_port *port);

// Between shim.c and guard.c.
int ofi_guarded(struct ofi_port *port, struct ofi_batch *batch,
		_Atomic int *abandoned);
OFI_CALL void ofi_exchange_now(struct ofi_port *port, struct ofi_batch *batch);
OFI_CALL int ofi_is_abandoned(struct ofi_port *port);

// 0: safe to sleep on the queue's descriptor; -EAGAIN: reap first (fi_trywait).
OFI_CALL int ofi_trywait(struct ofi_port *port);

// Signal dispositions, which providers overwrite while the library is loaded and endpoints are
// opened.
struct ofi_signals;
struct ofi_signals *ofi_signals_save(void);
void ofi_signals_restore(struct ofi_signals *saved);

#pragma GCC visibility pop

#endif
