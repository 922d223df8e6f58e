//go:build linux && cgo

package ofi

/*
#cgo noescape ofi_exchange
#cgo nocallback ofi_exchange
#include <errno.h>
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import "unsafe"

// Kind is the verb of an operation and of its completion.
type Kind uint8

// The verbs. All but RemoteWrite can be posted.
const (
	Send        Kind = C.OFI_SEND         // fi_send
	Inject      Kind = C.OFI_INJECT       // fi_inject: no completion
	Recv        Kind = C.OFI_RECV         // fi_recv
	Write       Kind = C.OFI_WRITE        // fi_write, or fi_writemsg if Deliver
	WriteData   Kind = C.OFI_WRITE_DATA   // fi_writedata, or fi_writemsg if Deliver
	RemoteWrite Kind = C.OFI_REMOTE_WRITE // completion of a peer's WriteData
)

const (
	// BatchOps is the most operations that a batch holds.
	BatchOps = C.OFI_BATCH_OPS
	// BatchDone is the most completions that a batch holds.
	BatchDone = C.OFI_BATCH_DONE
)

// Op is one operation to post.
type Op struct {
	Kind    Kind
	Deliver bool    // Write, WriteData: complete once in the target's memory
	Tag     uint32  // comes back in the completion
	Data    uint64  // WriteData: completion data, of which Info.CQDataSize bytes arrive
	To      Addr    // all but receives
	Buf     []byte  // outside the Go heap
	Desc    uintptr // Region.Desc, if Info.LocalMR
	Remote  uint64  // writes: Region.Base of the target plus an offset
	Key     uint64  // writes: Region.Key of the target
}

// Completion is one entry of the completion queue.
type Completion struct {
	Kind Kind // 0: an error that belongs to no operation
	Tag  uint32
	Data uint64 // RemoteWrite
	Len  int    // Recv: bytes received
	Err  error  // *CompletionError
}

// Batch carries operations and completions between Go and C, in C memory. It may be reused, by one
// goroutine at a time, and must be freed.
type Batch struct{ c *C.struct_ofi_batch }

// NewBatch returns an empty batch.
func NewBatch() (*Batch, error) {
	c := C.ofi_batch_new()
	if c == nil {
		return nil, callError("malloc", -C.ENOMEM)
	}
	return &Batch{c}, nil
}

// Free releases the batch.
func (b *Batch) Free() {
	C.free(unsafe.Pointer(b.c))
	b.c = nil
}

// Reset empties the batch.
func (b *Batch) Reset() { b.c.nops = 0 }

// Add appends an operation and reports whether there was room for it.
func (b *Batch) Add(op *Op) bool {
	c := b.c
	if c.nops == BatchOps {
		return false
	}
	buf := uintptr(unsafe.Pointer(unsafe.SliceData(op.Buf)))
	o := &c.ops[c.nops]
	o.buf, o.len, o.desc = C.uintptr_t(buf), C.size_t(len(op.Buf)), C.uintptr_t(op.Desc)
	o.to, o.remote, o.key = C.uint64_t(op.To), C.uint64_t(op.Remote), C.uint64_t(op.Key)
	o.tag, o.data = C.uint32_t(op.Tag), C.uint64_t(op.Data)
	o.kind, o.deliver = C.uint8_t(op.Kind), 0
	if op.Deliver {
		o.deliver = 1
	}
	c.nops++
	return true
}

// Exchange posts the batch's operations in order until one fails or the provider's queue is full,
// then reaps up to done completions, which Completion returns, and at most BatchDone. postErr is
// the error of the first operation that was not posted, nil if the queue was full; reapErr is that
// of the queue. Both are ErrAbandoned after Abandon.
func (ep *Endpoint) Exchange(b *Batch, done int) (posted, reaped int, postErr, reapErr error) {
	c := b.c
	c.ndone = C.uint32_t(min(done, BatchDone))
	if ep.options.LockRegions {
		ep.regions.RLock()
		C.ofi_exchange(ep.port, c)
		ep.regions.RUnlock()
	} else {
		C.ofi_exchange(ep.port, c)
	}
	if c.post_err == C.EOWNERDEAD && ep.abandoned.Load() {
		return int(c.posted), 0, ErrAbandoned, ErrAbandoned
	}
	if c.post_err != 0 {
		postErr = &CallError{Call: "posting", Errno: Errno(c.post_err)}
	}
	if c.reap_err != 0 {
		reapErr = callError("fi_cq_read", -C.int(c.reap_err))
	}
	return int(c.posted), int(c.reaped), postErr, reapErr
}

// Completion returns the i-th completion of the last Exchange.
func (b *Batch) Completion(i int) Completion {
	d := &b.c.done[i]
	done := Completion{
		Kind: Kind(d.kind),
		Tag:  uint32(d.tag),
		Data: uint64(d.data),
		Len:  int(d.len),
	}
	if d.err != 0 {
		done.Err = &CompletionError{Errno: Errno(d.err), Provider: int32(d.prov_err)}
	}
	return done
}
