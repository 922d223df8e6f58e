// Package fdbell has goroutines sleep on descriptors in Go's netpoller.
package fdbell

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Bell is a fabric.Bell that rings when a descriptor becomes readable, or more readable: nobody reads from it.
type Bell struct {
	fd    int
	file  *os.File
	raw   syscall.RawConn
	ready func() bool        // of the Sleep that is going on
	look  func(uintptr) bool // calls it; made once, so that sleeping allocates nothing

	mu    sync.Mutex  // orders Wake and Sleep when they change the deadline
	woken atomic.Bool // the deadline has passed
}

// New takes over the descriptor, even if it fails.
func New(fd int) (*Bell, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	b := &Bell{fd: fd, file: os.NewFile(uintptr(fd), "bell")}
	b.look = func(uintptr) bool { return b.ready() }
	var err error
	if b.raw, err = b.file.SyscallConn(); err == nil {
		err = b.file.SetReadDeadline(time.Time{}) // fails unless the netpoller took it
	}
	if err != nil {
		b.file.Close()
		return nil, fmt.Errorf("descriptor to sleep on: %w", err)
	}
	return b, nil
}

// FD returns the descriptor, which is the Bell's.
func (b *Bell) FD() int { return b.fd }

// Sleep implements fabric.Bell. The netpoller is edge-triggered (epoll(7)): an edge is lost unless ready itself
// looks for what it announces.
func (b *Bell) Sleep(ready func() bool) error {
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

// Wake implements fabric.Bell. It does not depend on what others do to the descriptor.
func (b *Bell) Wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.woken.Store(true)
	_ = b.file.SetReadDeadline(time.Unix(1, 0)) // fails only once closed, when nobody sleeps
}

// Close ends Sleep with an error, once ready has returned.
func (b *Bell) Close() error { return b.file.Close() }
