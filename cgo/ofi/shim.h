// The data path of the binding: post a batch of operations and reap a batch of
// completions in one call from Go, and no policy.

#ifndef FABRICNET_OFI_SHIM_H
#define FABRICNET_OFI_SHIM_H

#include <stddef.h>
#include <stdint.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <netinet/in.h>

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
	OFI_RECV_MULTI,
	OFI_WRITE,
	OFI_WRITE_DATA,
	OFI_INJECT_WRITE,
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
	uint64_t offset;   // of the message in a multi-receive buffer
	uint64_t data;
	uint32_t tag;
	int32_t err;       // 0, or a positive fi_errno(3)
	int32_t prov_err;
	uint8_t kind;
	uint8_t released;  // the operation's buffer is free again
};

// A batch lives in C memory for as long as it is used, so that neither Go's
// garbage collector nor cgo's pointer checks have a part in the data path.
struct ofi_batch {
	uint32_t nops;     // in: operations to post
	uint32_t ndone;    // in: completions wanted, at most OFI_BATCH_DONE
	uint32_t posted;   // out
	uint32_t reaped;   // out
	int32_t post_err;  // out: of ops[posted], 0 when the queue is full
	int32_t reap_err;  // out: of the queue itself
	struct ofi_op ops[OFI_BATCH_OPS];
	struct ofi_done done[OFI_BATCH_DONE];
	size_t scratch_len;
	size_t scratch_size;
	uint8_t scratch[];   // payloads of inject operations
};

// A port is an enabled endpoint with its completion queue and the contexts of
// the operations in flight.
struct ofi_port;

struct ofi_port *ofi_port_new(struct fid_fabric *fabric, struct fid_ep *ep,
			      struct fid_cq *cq, const struct fi_info *info,
			      uint32_t tx_depth, uint32_t rx_depth, int guarded);
void ofi_port_free(struct ofi_port *port);

struct ofi_batch *ofi_batch_new(size_t scratch_size);

// Posts until an operation fails or the queue is full, then reaps.
void ofi_exchange(struct ofi_port *port, struct ofi_batch *batch);

// The calls of ofi_exchange that are going on on a guarded port, at most max.
// Two looks that find the same number have found the same call.
struct ofi_call {
	int32_t tid;
	uint64_t number;
};
int ofi_calls(struct ofi_port *port, struct ofi_call *calls, int max);

// Makes all calls on a guarded port fail with EOWNERDEAD from now on, without
// entering the library, then gets those out that are in it. Returns 0, or
// -EBUSY if a call did not come out.
void ofi_abandon(struct ofi_port *port);
int ofi_eject(struct ofi_port *port);

// Between shim.c and guard.c.
int ofi_guarded(struct ofi_port *port, struct ofi_batch *batch,
		_Atomic int *abandoned);
void ofi_exchange_now(struct ofi_port *port, struct ofi_batch *batch);
int ofi_is_abandoned(struct ofi_port *port);

// 0: safe to sleep on the queue's descriptor; -FI_EAGAIN: reap first.
int ofi_trywait(struct ofi_port *port);

// Signal dispositions, which providers overwrite while endpoints are opened.
struct ofi_signals;
struct ofi_signals *ofi_signals_save(void);
void ofi_signals_restore(struct ofi_signals *saved);

#endif
