package pool

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// pause lets others run: goroutines, which have other processors but for one that
// nanosleep(2) keeps, and the machine's other threads. time.Sleep would do, but takes a
// millisecond at least in a process that does nothing else: the runtime then waits in
// epoll_wait(2), which counts in those.
func pause(d time.Duration) {
	if runtime.GOMAXPROCS(0) == 1 {
		time.Sleep(d)
		return
	}
	runtime.Gosched()
	t := unix.NsecToTimespec(d.Nanoseconds())
	_ = unix.Nanosleep(&t, nil) // a signal may end it early
}
