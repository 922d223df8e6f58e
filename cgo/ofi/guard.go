//go:build linux && cgo

package ofi

// #include "shim.h"
import "C"

import "errors"

// ErrAbandoned is what all calls of an endpoint return after Abandon.
var ErrAbandoned = errors.New("endpoint abandoned: a call hung in the library")

// mayHang reports that a peer can leave calls of the provider spinning for ever:
// shm's lock in shared memory, if it dies while it holds it, or a message that is
// longer than the receive, of which shm copies nothing again and again.
func mayHang(info Info) bool { return info.Provider() == "shm" }

// Call is a call of Exchange that is going on.
type Call struct {
	Thread int    // its kernel thread
	Number uint64 // of the thread's calls: two looks that find the same found the same call
}

// Calls lists the calls of Exchange that are going on. It is always empty for
// providers whose calls return.
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
