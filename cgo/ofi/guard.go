//go:build linux && cgo

package ofi

// #include "shim.h"
import "C"

import "errors"

// ErrAbandoned is what all calls of an endpoint return after Abandon.
var ErrAbandoned = errors.New("endpoint abandoned: a call hung in the library")

// Call is a call of Exchange that is going on.
type Call struct {
	Thread int    // its kernel thread
	Number uint64 // of the thread's calls: two looks that find the same found the same call
}

// Calls lists the calls of Exchange that are going on. It is always empty without
// Options.Guarded.
func (ep *Endpoint) Calls() []Call {
	var list [64]C.struct_ofi_call
	n := int(C.ofi_calls(ep.port, &list[0], C.int(len(list))))
	calls := make([]Call, n)
	for i := range calls {
		calls[i] = Call{int(list[i].tid), uint64(list[i].number)}
	}
	return calls
}

// Abandon gets the calls of Exchange out of the library that are going on, by a
// signal to their threads, and has nothing enter it again: what it has locked
// stays locked, and what it has mapped stays mapped. All calls fail from then on,
// but for Close, Shutdown and Region.Close, which do nothing. It is the last
// resort for a call that hangs on a lock of a dead process; what was posted is
// lost. It returns an error if a call did not come out.
func (ep *Endpoint) Abandon() error {
	ep.abandoned.Store(true)
	C.ofi_abandon(ep.port)
	if ret := C.ofi_eject(ep.port); ret < 0 {
		return callError("getting a thread out of libfabric", ret)
	}
	return nil
}
