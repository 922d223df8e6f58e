package load

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// onOneCore calls start on a thread that may run only on the first CPU that this process may use.
// Processes that start creates inherit this.
func onOneCore(start func() error) (err error) {
	runtime.LockOSThread()
	defer func() {
		if err == nil {
			runtime.UnlockOSThread() // else the thread ends with its goroutine
		}
	}()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return fmt.Errorf("sched_getaffinity: %w", err)
	}
	first := 0
	for !all.IsSet(first) {
		first++
	}
	one.Set(first)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("sched_setaffinity: %w", err)
	}
	return errors.Join(start(), unix.SchedSetaffinity(0, &all))
}
