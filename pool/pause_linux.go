package pool

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// pause lets others run: goroutines, on all processors but the one that nanosleep(2)
// keeps, and the machine's other threads. time.Sleep would do too, but takes at least
// a millisecond in a process that does nothing else: the runtime then waits in
// epoll_wait(2), which counts in milliseconds.
func pause(d time.Duration) {
	if runtime.GOMAXPROCS(0) == 1 {
		time.Sleep(d)
		return
	}
	runtime.Gosched()
	t := unix.NsecToTimespec(d.Nanoseconds())
	_ = unix.Nanosleep(&t, nil) // a signal may end it early
}
