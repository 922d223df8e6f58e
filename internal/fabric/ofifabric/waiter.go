//go:build linux && cgo

package ofifabric

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/fdbell"
)

// waiter has goroutines sleep on the completion queue's descriptor in Go's netpoller, each by a descriptor
// of its own, since the netpoller knows one reader of each. The watcher's is an epoll instance around
// the queue's descriptor (epoll(7)), since that can be told to be silent without waking the watcher.
type waiter struct {
	tryWait       func() (safe bool, err error)
	queue         int // libfabric's descriptor
	bell, watcher *fdbell.Bell
}

func newWaiter(o *ofi.Endpoint) (*waiter, error) { return waiterOn(o.WaitFD(), o.TryWait) }

// waiterOn takes a duplicate of the descriptor, since an os.File closes its descriptor and the
// queue's belongs to libfabric.
func waiterOn(queue int, tryWait func() (bool, error)) (w *waiter, err error) {
	w = &waiter{tryWait: tryWait, queue: queue}
	fd, err := unix.FcntlInt(uintptr(queue), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicating the completion queue's descriptor: %w", err)
	}
	if w.bell, err = fdbell.New(fd); err != nil {
		return nil, err
	}
	if fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err == nil {
		w.watcher, err = fdbell.New(fd)
	}
	if err == nil {
		err = os.NewSyscallError("epoll_ctl", unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, queue, &unix.EpollEvent{}))
	}
	if err != nil {
		w.close()
		return nil, fmt.Errorf("watching the completion queue's descriptor: %w", err)
	}
	return w, nil
}

// TryWait implements fabric.Waiter.
func (w *waiter) TryWait() (bool, error) { return w.tryWait() }

// Bell implements fabric.Waiter.
func (w *waiter) Bell() fabric.Bell { return w.bell }

// Watcher implements fabric.Waiter.
func (w *waiter) Watcher() fabric.Bell { return w.watcher }

// Watch implements fabric.Waiter. That the descriptor is readable by then need not make the epoll instance
// readable anew: the kernel leaves it among those that are ready while nobody takes it from there.
func (w *waiter) Watch(on bool) (ready bool) {
	var events [1]unix.EpollEvent
	if on {
		events[0].Events = unix.EPOLLIN
	}
	_ = unix.EpollCtl(w.watcher.FD(), unix.EPOLL_CTL_MOD, w.queue, &events[0]) // fails only once closed
	if on {
		n, err := unix.EpollWait(w.watcher.FD(), events[:], 0)
		ready = n > 0 || err != nil
	}
	return ready
}

func (w *waiter) close() {
	for _, b := range []*fdbell.Bell{w.bell, w.watcher} {
		if b != nil {
			_ = b.Close()
		}
	}
}
