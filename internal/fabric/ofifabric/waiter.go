//go:build linux && cgo

package ofifabric

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// waiter has goroutines sleep on the completion queue's descriptor in Go's netpoller, each by a descriptor
// of its own, since the netpoller knows one reader of each. The watcher's is an epoll instance around
// the queue's descriptor (epoll(7)), since that can be told to be silent without waking the watcher.
type waiter struct {
	tryWait       func() (safe bool, err error)
	queue         int // libfabric's descriptor
	bell, watcher *fdBell
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
	if w.bell, err = newFDBell(fd); err != nil {
		return nil, err
	}
	if fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err == nil {
		w.watcher, err = newFDBell(fd)
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
	_ = unix.EpollCtl(w.watcher.fd, unix.EPOLL_CTL_MOD, w.queue, &events[0]) // fails only once closed
	if on {
		n, err := unix.EpollWait(w.watcher.fd, events[:], 0)
		ready = n > 0 || err != nil
	}
	return ready
}

func (w *waiter) close() {
	w.bell.close()
	w.watcher.close()
}

// fdBell rings when a descriptor becomes readable.
type fdBell struct {
	fd    int
	file  *os.File
	raw   syscall.RawConn
	ready func() bool        // of the Sleep that is going on
	look  func(uintptr) bool // calls it; made once, so that sleeping allocates nothing

	mu    sync.Mutex  // orders Wake and Sleep when they change the deadline
	woken atomic.Bool // the deadline has passed
}

// newFDBell takes over the descriptor, even if it fails.
func newFDBell(fd int) (*fdBell, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("completion queue's descriptor: %w", err)
	}
	b := &fdBell{fd: fd, file: os.NewFile(uintptr(fd), "completion queue")}
	b.look = func(uintptr) bool { return b.ready() }
	var err error
	if b.raw, err = b.file.SyscallConn(); err == nil {
		err = b.file.SetReadDeadline(time.Time{}) // fails unless the netpoller took it
	}
	if err != nil {
		b.file.Close()
		return nil, fmt.Errorf("completion queue's descriptor: %w", err)
	}
	return b, nil
}

// Sleep implements fabric.Bell. The netpoller is edge-triggered: an edge is lost unless ready itself
// looks at the queue.
func (b *fdBell) Sleep(ready func() bool) error {
	if b.woken.Load() {
		b.mu.Lock()
		b.woken.Store(false)
		err := b.file.SetReadDeadline(time.Time{})
		b.mu.Unlock()
		if err != nil {
			return err
		}
	}
	b.ready = ready
	if err := b.raw.Read(b.look); !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}

// Wake implements fabric.Bell.
func (b *fdBell) Wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.woken.Store(true)
	_ = b.file.SetReadDeadline(time.Unix(1, 0)) // fails only once closed, when nobody sleeps
}

func (b *fdBell) close() {
	if b != nil {
		b.file.Close()
	}
}
