//go:build unix

package bootstrap

import (
	"os"

	"golang.org/x/sys/unix"
)

// peek looks at the first bytes that a socket has received. over says that no more will come.
func peek(fd uintptr, b []byte) (n int, over bool, err error) {
	// First: whatever precedes the end is there once the end is.
	ended := endOfInput(int(fd))
	for {
		n, _, err = unix.Recvfrom(int(fd), b, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return 0, ended, nil
		case err != nil:
			return 0, false, os.NewSyscallError("recvfrom", err)
		}
		return n, ended || n == 0, nil
	}
}

// endOfInput reports whether the peer has ended its direction, even if bytes of it are unread.
func endOfInput(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: hangUp}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0 && p[0].Revents&hangUp != 0
}
