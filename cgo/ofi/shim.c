//go:build linux && cgo

#include "shim.h"

#ifdef OFI_LOADS

#include "load.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

// One context for each operation in flight. libfabric owns the first member from the post to the
// completion (FI_CONTEXT2 in fi_getinfo(3)).
struct context {
	struct fi_context2 fi;
	_Atomic uint32_t next; // in the free list: index plus one, 0 ends it
	uint32_t tag;
	uint8_t kind;          // OFI_NONE while the context is free
};

// A lock-free stack of free contexts. The upper half of head counts changes, so that it is noticed
// if a context was taken and put back in between.
struct contexts {
	struct context *base;
	uint32_t count;
	_Atomic uint64_t head;
};

// Sends and receives have separate tables: receives are posted early and stay, and must not use up
// what sends need.
struct ofi_port {
	struct fid_ep *ep;
	struct fid_cq *cq;
	struct fid_fabric *fabric;
	size_t inject_size;
	size_t max_msg_size;
	int guarded;            // see guard.c
	_Atomic int abandoned;
	struct contexts tx;
	struct contexts rx;
};

static void put(struct contexts *list, struct context *ctx)
{
	uint64_t index = (uint64_t)(ctx - list->base) + 1;
	uint64_t old = atomic_load_explicit(&list->head, memory_order_relaxed);
	uint64_t head;

	ctx->kind = OFI_NONE;
	do {
		atomic_store_explicit(&ctx->next, (uint32_t)old,
				      memory_order_relaxed);
		head = ((old >> 32) + 1) << 32 | index;
	} while (!atomic_compare_exchange_weak_explicit(
		&list->head, &old, head, memory_order_release,
		memory_order_relaxed));
}

static struct context *take(struct contexts *list)
{
	uint64_t old = atomic_load_explicit(&list->head, memory_order_acquire);
	uint64_t head;
	struct context *ctx;

	do {
		if (!(uint32_t)old)
			return NULL;
		ctx = &list->base[(uint32_t)old - 1];
		head = ((old >> 32) + 1) << 32 |
		       atomic_load_explicit(&ctx->next, memory_order_relaxed);
	} while (!atomic_compare_exchange_weak_explicit(
		&list->head, &old, head, memory_order_acquire,
		memory_order_acquire));
	return ctx;
}

static int contexts_init(struct contexts *list, uint32_t count)
{
	list->base = calloc(count, sizeof(*list->base));
	if (!list->base)
		return -1;
	list->count = count;
	for (uint32_t i = count; i > 0; i--)
		put(list, &list->base[i - 1]);
	return 0;
}

// The table that a completion's op_context belongs to, or NULL. Providers hand out NULL and other
// values for completions that belong to no operation here.
static struct contexts *owner(struct ofi_port *port, const void *ctx)
{
	struct contexts *lists[] = { &port->tx, &port->rx };

	for (int i = 0; i < 2; i++) {
		uintptr_t off = (uintptr_t)ctx - (uintptr_t)lists[i]->base;

		if (off < lists[i]->count * sizeof(struct context) &&
		    off % sizeof(struct context) == 0 &&
		    ((const struct context *)ctx)->kind != OFI_NONE)
			return lists[i];
	}
	return NULL;
}

struct ofi_port *ofi_port_new(struct fid_fabric *fabric, struct fid_ep *ep,
			      struct fid_cq *cq, const struct fi_info *info,
			      uint32_t tx_depth, uint32_t rx_depth, int guarded)
{
	struct ofi_port *port = calloc(1, sizeof(*port));

	if (!port)
		return NULL;
	port->fabric = fabric;
	port->ep = ep;
	port->cq = cq;
	port->inject_size = info->tx_attr->inject_size;
	port->max_msg_size = info->ep_attr->max_msg_size;
	port->guarded = guarded;
	if (contexts_init(&port->tx, tx_depth) ||
	    contexts_init(&port->rx, rx_depth)) {
		ofi_port_free(port);
		return NULL;
	}
	return port;
}

void ofi_port_free(struct ofi_port *port)
{
	free(port->tx.base);
	free(port->rx.base);
	free(port);
}

struct ofi_batch *ofi_batch_new(void)
{
	return calloc(1, sizeof(struct ofi_batch));
}

static ssize_t write_deliver(struct fid_ep *ep, struct ofi_op *op, void *ctx)
{
	struct iovec iov = { .iov_base = (void *)op->buf, .iov_len = op->len };
	void *desc = (void *)op->desc;
	struct fi_rma_iov rma = {
		.addr = op->remote, .len = op->len, .key = op->key,
	};
	struct fi_msg_rma msg = {
		.msg_iov = &iov,
		.desc = &desc,
		.iov_count = 1,
		.addr = op->to,
		.rma_iov = &rma,
		.rma_iov_count = 1,
		.context = ctx,
		.data = op->data,
	};
	uint64_t flags = FI_DELIVERY_COMPLETE | FI_COMPLETION;

	if (op->kind == OFI_WRITE_DATA)
		flags |= FI_REMOTE_CQ_DATA;
	return fi_writemsg(ep, &msg, flags);
}

static ssize_t start(struct fid_ep *ep, struct ofi_op *op, void *ctx)
{
	void *buf = (void *)op->buf;
	void *desc = (void *)op->desc;

	switch (op->kind) {
	case OFI_SEND:
		return fi_send(ep, buf, op->len, desc, op->to, ctx);
	case OFI_RECV:
		return fi_recv(ep, buf, op->len, desc, FI_ADDR_UNSPEC,
			       ctx);
	case OFI_WRITE:
		if (op->deliver)
			return write_deliver(ep, op, ctx);
		return fi_write(ep, buf, op->len, desc, op->to,
				op->remote, op->key, ctx);
	case OFI_WRITE_DATA:
		if (op->deliver)
			return write_deliver(ep, op, ctx);
		return fi_writedata(ep, buf, op->len, desc, op->data,
				    op->to, op->remote, op->key, ctx);
	}
	return -FI_EINVAL;
}

// Returns 0, -FI_EAGAIN when the queue or the table of contexts is full, or
// another negative error. Lengths are checked here because not every provider
// checks them.
static ssize_t post(struct ofi_port *port, struct ofi_op *op)
{
	int recv = op->kind == OFI_RECV;
	struct contexts *list = recv ? &port->rx : &port->tx;
	void *buf = (void *)op->buf;
	struct context *ctx;
	ssize_t ret;

	if (op->kind == OFI_INJECT) {
		if (op->len > port->inject_size)
			return -FI_EMSGSIZE;
		return fi_inject(port->ep, buf, op->len, op->to);
	}
	if (!recv && op->len > port->max_msg_size)
		return -FI_EMSGSIZE;

	ctx = take(list);
	if (!ctx)
		return -FI_EAGAIN;
	ctx->kind = op->kind;
	ctx->tag = op->tag;
	ret = start(port->ep, op, ctx);
	if (ret)
		put(list, ctx);
	return ret;
}

static void remote_write(struct ofi_done *done, uint64_t data)
{
	*done = (struct ofi_done){ .kind = OFI_REMOTE_WRITE, .data = data };
}

// Only flags say that a completion is a peer's write: its other fields, the context among them,
// hold whatever the provider left there. shm from libfabric 2.0 to 2.3 leaves out FI_REMOTE_WRITE
// (smr_complete_rx) and sets no other flag besides FI_REMOTE_CQ_DATA. According to fi_cq(3),
// completion data comes either with a message, which FI_RECV tells, or with a write. opx sets
// FI_REMOTE_CQ_DATA on the writer's side, too (fi_opx_write).
static int is_remote_write(uint64_t flags)
{
	return (flags & FI_REMOTE_WRITE) ||
	       ((flags & FI_REMOTE_CQ_DATA) &&
		!(flags & (FI_RECV | FI_SEND | FI_WRITE)));
}

static int completion(struct ofi_port *port, const struct fi_cq_data_entry *e,
		      struct ofi_done *done)
{
	struct context *ctx = e->op_context;
	struct contexts *list;

	if (is_remote_write(e->flags)) {
		remote_write(done, e->data);
		return 1;
	}
	list = owner(port, ctx);
	if (!list)
		return 0;
	*done = (struct ofi_done){ .kind = ctx->kind, .tag = ctx->tag,
				   .len = e->len };
	put(list, ctx);
	return 1;
}

// Reads the error that fi_cq_read(3) announced. If the provider left out the context, the kind
// stays OFI_NONE. shm reports some errors negated.
static ssize_t completion_error(struct ofi_port *port, struct ofi_done *done)
{
	struct fi_cq_err_entry e;
	struct context *ctx;
	struct contexts *list;
	ssize_t ret;

	memset(&e, 0, sizeof(e));
	ret = fi_cq_readerr(port->cq, &e, 0);
	if (ret < 0)
		return ret;
	*done = (struct ofi_done){ .err = abs(e.err), .prov_err = e.prov_errno };
	if (!done->err)
		done->err = FI_EOTHER;
	if (is_remote_write(e.flags))
		return 1;
	ctx = e.op_context;
	list = owner(port, ctx);
	if (list) {
		done->kind = ctx->kind;
		done->tag = ctx->tag;
		done->len = e.len;
		put(list, ctx);
	}
	return 1;
}

// Reads until the first entries have come. A further read that finds nothing would be wasted work,
// since each one drives the provider's progress.
static void reap(struct ofi_port *port, struct ofi_batch *batch)
{
	struct fi_cq_data_entry entries[OFI_BATCH_DONE];
	ssize_t ret;

	while (batch->reaped < batch->ndone) {
		ret = fi_cq_read(port->cq, entries,
				 batch->ndone - batch->reaped);
		if (ret == -FI_EAVAIL) {
			ret = completion_error(port,
					       &batch->done[batch->reaped]);
			if (ret > 0) {
				batch->reaped++;
				continue;
			}
		}
		if (ret == -FI_EAGAIN || ret == 0)
			return;
		if (ret < 0) {
			batch->reap_err = (int32_t)-ret;
			return;
		}
		for (ssize_t i = 0; i < ret; i++)
			batch->reaped += completion(
				port, &entries[i], &batch->done[batch->reaped]);
		return;
	}
}

void ofi_exchange_now(struct ofi_port *port, struct ofi_batch *batch)
{
	ssize_t ret;

	// Processes may share memory that libfabric knows nothing of. What is written there must be
	// visible before the message that says so is, and must not be read before that message.
	if (batch->nops)
		atomic_thread_fence(memory_order_release);
	for (; batch->posted < batch->nops; batch->posted++) {
		ret = post(port, &batch->ops[batch->posted]);
		if (!ret)
			continue;
		if (ret != -FI_EAGAIN)
			batch->post_err = (int32_t)-ret;
		break;
	}
	if (batch->ndone) {
		reap(port, batch);
		atomic_thread_fence(memory_order_acquire);
	}
}

void ofi_exchange(struct ofi_port *port, struct ofi_batch *batch)
{
	int err;

	batch->posted = 0;
	batch->reaped = 0;
	batch->post_err = 0;
	batch->reap_err = 0;
	if (!port->guarded) {
		ofi_exchange_now(port, batch);
		return;
	}
	err = ofi_guarded(port, batch, &port->abandoned);
	if (err) {
		batch->post_err = err;
		batch->reap_err = err;
	}
}

int ofi_is_abandoned(struct ofi_port *port)
{
	return port && atomic_load(&port->abandoned);
}

void ofi_abandon(struct ofi_port *port)
{
	atomic_store(&port->abandoned, 1);
}

int ofi_trywait(struct ofi_port *port)
{
	struct fid *fids[] = { &port->cq->fid };

	return fi_trywait(port->fabric, fids, 1);
}

#endif
