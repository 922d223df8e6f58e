package ofi

import (
	"fmt"
	"strconv"
	"syscall"
)

// Errno is an error number of libfabric, fi_errno(3): below 256 the system's
// own, above that libfabric's. errors.Is matches it against syscall.Errno
// values and against what those match in turn, such as os.ErrPermission.
type Errno uint32

// Errors of libfabric that callers have to tell apart.
const (
	ErrTooSmall Errno = 257 // FI_ETOOSMALL
	ErrTruncate Errno = 265 // FI_ETRUNC: the receive buffer was too small
	ErrNoKey    Errno = 266 // FI_ENOKEY: the key is in use, or unknown
	ErrOverrun  Errno = 268 // FI_EOVERRUN: the completion queue lost entries
)

// fabricErrnos describes the numbers that only libfabric has, each with the
// system's error that comes closest.
var fabricErrnos = map[Errno]struct {
	text string
	near syscall.Errno
}{
	256:         {"unspecified error", syscall.EIO},
	ErrTooSmall: {"provided buffer is too small", syscall.ENOBUFS},
	258:         {"operation not permitted in current state", syscall.EPERM},
	259:         {"error available", syscall.EIO},
	260:         {"flags not supported", syscall.EINVAL},
	261:         {"missing or unavailable event queue", syscall.ENOENT},
	262:         {"invalid resource domain", syscall.EINVAL},
	263:         {"missing or unavailable completion queue", syscall.ENOENT},
	264:         {"CRC error", syscall.EBADMSG},
	ErrTruncate: {"message truncated", syscall.EMSGSIZE},
	ErrNoKey:    {"memory key not available", syscall.EACCES},
	267:         {"missing or unavailable address vector", syscall.ENOENT},
	ErrOverrun:  {"completion queue overrun", syscall.EOVERFLOW},
	269:         {"receiver not ready", syscall.ENOBUFS},
	270:         {"no more memory registrations available", syscall.ENOMEM},
	271:         {"host unreachable because of a firewall", syscall.EHOSTUNREACH},
}

// Error returns the text of the error, as fi_strerror(3) would.
func (e Errno) Error() string {
	if e < 256 {
		return syscall.Errno(e).Error()
	}
	if f, ok := fabricErrnos[e]; ok {
		return f.text
	}
	return "libfabric error " + strconv.Itoa(int(e))
}

// Is reports whether target is the same error, or one that the system's
// error closest to it matches.
func (e Errno) Is(target error) bool {
	near := syscall.Errno(e)
	if e >= 256 {
		near = fabricErrnos[e].near
	}
	if errno, ok := target.(syscall.Errno); ok {
		return near != 0 && near == errno
	}
	return near != 0 && near.Is(target)
}

// CallError is the failure of a libfabric function.
type CallError struct {
	Call string // the C function
	Errno
}

// Error names the function and what went wrong.
func (e *CallError) Error() string { return e.Call + ": " + e.Errno.Error() }

// Unwrap returns the Errno.
func (e *CallError) Unwrap() error { return e.Errno }

// CompletionError is the failure of an operation after it was posted, as
// fi_cq_readerr(3) reports it.
type CompletionError struct {
	Errno
	Provider int32 // prov_errno: the provider's own number, for a person to look up
}

// Error names what went wrong and the provider's own number.
func (e *CompletionError) Error() string {
	if e.Provider == 0 || e.Provider == int32(e.Errno) || e.Provider == -int32(e.Errno) {
		return "fi_cq_readerr: " + e.Errno.Error()
	}
	return fmt.Sprintf("fi_cq_readerr: %s (provider error %d)", e.Errno.Error(), e.Provider)
}

// Unwrap returns the Errno.
func (e *CompletionError) Unwrap() error { return e.Errno }
