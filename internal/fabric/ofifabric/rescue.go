//go:build linux && cgo

package ofifabric

import (
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
)

// A call that hangs spins: it uses processor time without end. A call that merely takes long,
// because its thread has no processor or because this process was stopped, uses none meanwhile.
// That is why processor time counts, and not wall-clock time. The longest calls that end by
// themselves copy everything that fits into a peer's landing rings, which takes some milliseconds.
const (
	hangTime = 100 * time.Millisecond // of processor time
	lookTime = time.Millisecond       // between two looks at the calls
)

// left holds the abandoned endpoints. What the library may still touch of them cannot be freed, and
// a leak checker must not report it.
var left sync.Map

// Rescue implements fabric.Rescuer.
func (e *endpoint) Rescue() bool {
	e.rescue.Lock()
	defer e.rescue.Unlock()
	if e.abandoned || e.closed {
		return e.abandoned
	}
	begun := make(map[ofi.Call]time.Duration)
	for _, c := range e.ofi.Calls() {
		begun[c] = threadTime(c.Thread)
	}
	for len(begun) > 0 {
		time.Sleep(lookTime)
		calls := e.ofi.Calls()
		for c, start := range begun {
			if !slices.Contains(calls, c) {
				delete(begun, c)
			} else if threadTime(c.Thread)-start > hangTime {
				if e.abandoned = e.ofi.Abandon() == nil; e.abandoned {
					left.Store(e, nil)
				}
				return e.abandoned
			}
		}
	}
	return false
}

// threadTime returns the processor time that a thread of this process has used.
func threadTime(tid int) time.Duration {
	// How the kernel numbers the clocks of threads: clock_getcpuclockid(3).
	const perThread, sched = 4, 2
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^tid<<3|perThread|sched), &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
