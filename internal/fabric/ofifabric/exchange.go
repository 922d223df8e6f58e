//go:build linux && cgo

package ofifabric

import (
	"errors"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// The verbs of the two packages have the same numbers. This does not compile if they differ.
var _ = [1]struct{}{}[fabric.Kind(ofi.Send)-fabric.Send|fabric.Kind(ofi.Inject)-fabric.Inject|
	fabric.Kind(ofi.Recv)-fabric.Recv|fabric.Kind(ofi.Write)-fabric.Write|
	fabric.Kind(ofi.WriteData)-fabric.WriteData|fabric.Kind(ofi.RemoteWrite)-fabric.RemoteWrite]

// Exchange makes one call into C if everything fits into a batch, and several if not.
func (e *endpoint) Exchange(ops []fabric.Op, done []fabric.Completion) (posted, reaped int, err error) {
	b, err := e.take()
	if err != nil {
		return 0, 0, err
	}
	defer e.put(b)
	for {
		n := fill(b, ops[posted:])
		p, r, postErr, reapErr := e.ofi.Exchange(b, len(done)-reaped)
		for i := range r {
			done[reaped+i] = completion(b.Completion(i))
		}
		posted, reaped = posted+p, reaped+r
		all := posted == len(ops)
		switch {
		case errors.Is(postErr, ofi.ErrAbandoned):
			return posted, reaped, fabric.ErrAbandoned
		case postErr != nil:
			return posted, reaped, postErr
		case all && reapErr != nil:
			return posted, reaped, reapErr
		case p < n, reapErr != nil: // a broken queue reports the error again next time
			return posted, reaped, nil
		case all && (r < ofi.BatchDone || reaped == len(done)):
			return posted, reaped, nil
		}
	}
}

// fill puts as many operations into the batch as fit, and returns how many. If there are any, at
// least one fits.
func fill(b *ofi.Batch, ops []fabric.Op) int {
	b.Reset()
	for i := range ops {
		op := &ops[i]
		if !b.Add(&ofi.Op{
			Kind:    ofi.Kind(op.Kind), // an unknown one fails when it is posted
			Deliver: op.Deliver,
			Tag:     op.Tag,
			Data:    op.Data,
			To:      ofi.Addr(op.To),
			Buf:     op.Buf,
			Desc:    op.Desc,
			Remote:  op.Remote,
			Key:     op.Key,
		}) {
			return i
		}
	}
	return len(ops)
}

func completion(c ofi.Completion) fabric.Completion {
	return fabric.Completion{
		Kind: fabric.Kind(c.Kind),
		Tag:  c.Tag,
		Len:  c.Len,
		Data: c.Data,
		Err:  c.Err,
	}
}

// take returns a batch for one call.
func (e *endpoint) take() (*ofi.Batch, error) {
	if b := e.spare.Swap(nil); b != nil {
		return b, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.idle); n > 0 {
		b := e.idle[n-1]
		e.idle = e.idle[:n-1]
		return b, nil
	}
	return ofi.NewBatch()
}

func (e *endpoint) put(b *ofi.Batch) {
	if e.spare.CompareAndSwap(nil, b) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.idle = append(e.idle, b)
}
