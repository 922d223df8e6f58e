//go:build linux && cgo

package ofifabric

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
)

// A provider may report again and again that it is unsafe to sleep, with nothing to reap in
// between. After some yields Wait looks less and less often, so that such a provider costs latency
// but not a whole processor.
const (
	yields   = 64
	minPause = 10 * time.Microsecond
	maxPause = time.Millisecond
)

// waiter sleeps on the completion queue's descriptor in Go's netpoller.
type waiter struct {
	tryWait func() (safe bool, err error)
	file    *os.File
	raw     syscall.RawConn

	// State of the Wait in progress, of which there is at most one, for its callback. The callback
	// is made once, so that sleeping allocates nothing.
	ready   func() bool
	end     time.Time // zero: never
	found   bool
	waitErr error
	looks   func(uintptr) bool

	mu    sync.Mutex // orders Wake against the setting of the deadline
	woken bool
}

func newWaiter(o *ofi.Endpoint) (*waiter, error) { return waiterOn(o.WaitFD(), o.TryWait) }

// waiterOn takes a duplicate of the descriptor, since an os.File closes its descriptor and the
// queue's belongs to libfabric.
func waiterOn(queue int, tryWait func() (bool, error)) (*waiter, error) {
	fd, err := unix.FcntlInt(uintptr(queue), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicating the completion queue's descriptor: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("completion queue's descriptor: %w", err)
	}
	file := os.NewFile(uintptr(fd), "completion queue")
	raw, err := file.SyscallConn()
	if err == nil {
		err = file.SetReadDeadline(time.Time{}) // fails unless the netpoller took it
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("completion queue's descriptor: %w", err)
	}
	w := &waiter{tryWait: tryWait, file: file, raw: raw}
	w.looks = w.look
	return w, nil
}

// Wait implements fabric.Waiter.
func (w *waiter) Wait(ready func() bool, limit time.Duration) error {
	if ready() {
		return nil
	}
	var end time.Time
	if limit > 0 {
		end = time.Now().Add(limit)
	}
	for {
		found, err := w.sleep(ready, end)
		switch {
		case err != nil || found || w.wasWoken():
			return err
		case limit > 0 && !time.Now().Before(end):
			return nil
		}
	}
}

// sleep calls ready each time the descriptor becomes readable, until that returns true, or until
// end, if that is not zero. The netpoller is edge-triggered: an edge is lost unless the callback
// itself looks at the queue and asks fi_trywait.
func (w *waiter) sleep(ready func() bool, end time.Time) (found bool, err error) {
	w.mu.Lock()
	if !w.woken {
		err = w.file.SetReadDeadline(end)
	}
	w.mu.Unlock()
	if err != nil {
		return false, err
	}
	w.ready, w.end, w.found, w.waitErr = ready, end, false, nil
	err = w.raw.Read(w.looks)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	return w.found, errors.Join(err, w.waitErr)
}

// look is what the netpoller calls when the descriptor may be readable.
func (w *waiter) look(uintptr) bool {
	for try := 0; ; try++ {
		if w.found = w.ready(); w.found {
			return true
		}
		var safe bool
		if safe, w.waitErr = w.tryWait(); safe || w.waitErr != nil {
			return w.waitErr != nil
		}
		if !w.pause(try, w.end) {
			return false // the deadline, which has passed, ends the read
		}
	}
}

// pause comes between two looks at a queue that is not safe to sleep on. It returns false once end
// has come or Wake was called.
func (w *waiter) pause(try int, end time.Time) bool {
	if try < yields {
		runtime.Gosched()
		return true
	}
	time.Sleep(min(minPause<<min(try-yields, 16), maxPause))
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.woken && (end.IsZero() || time.Now().Before(end))
}

// wasWoken reports whether Wake was called, and forgets it.
func (w *waiter) wasWoken() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	woken := w.woken
	w.woken = false
	return woken
}

// Wake implements fabric.Waiter.
func (w *waiter) Wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.woken = true
	_ = w.file.SetReadDeadline(time.Unix(1, 0)) // fails only once closed, when nobody waits
}

func (w *waiter) close() { w.file.Close() }
