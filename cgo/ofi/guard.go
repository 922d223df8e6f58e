//go:build linux && cgo

package ofi

// #include "shim.h"
import "C"

import "errors"

// ErrAbandoned is what calls on an endpoint return after Abandon.
var ErrAbandoned = errors.New("endpoint abandoned: a call hung in the library")

// Call is a call of Exchange in progress.
type Call struct {
	Thread int    // its kernel thread
	Number uint64 // counts the thread's calls: the same thread and number mean the same call
}

// Calls lists the calls of Exchange in progress, 64 at most. Without Options.Guarded there are
// none.
func (ep *Endpoint) Calls() []Call {
	var list [64]C.struct_ofi_call
	n := int(C.ofi_calls(ep.port, &list[0], C.int(len(list))))
	calls := make([]Call, n)
	for i := range calls {
		calls[i] = Call{int(list[i].tid), uint64(list[i].number)}
	}
	return calls
}

// Abandon gets all calls of Exchange in progress out of the library, by a signal to their threads,
// and lets none enter it again. What the library has locked stays locked, and what it has mapped
// stays mapped. From then on all calls fail, except Close, Shutdown and Region.Close, which do
// nothing. This is the last resort for a call that hangs on a lock of a dead process; what was
// posted is lost. Abandon returns an error if a call did not come out.
func (ep *Endpoint) Abandon() error {
	ep.abandoned.Store(true)
	C.ofi_abandon(ep.port)
	if ret := C.ofi_eject(ep.port); ret < 0 {
		return callError("getting a thread out of libfabric", ret)
	}
	return nil
}
