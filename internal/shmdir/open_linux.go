package shmdir

import (
	"os"

	"golang.org/x/sys/unix"
)

// Open opens a file that others may have made. What check says of it decides: before the file is
// opened, since that can have effects on its own and can be noticed by the file's owner (open(2),
// fcntl(2) on leases), and once more afterwards, for the case that it was exchanged in between.
func Open(path string, flags int, check func(*unix.Stat_t) error) (fd int, err error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return -1, &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	if err := check(&st); err != nil {
		return -1, err
	}
	if fd, err = unix.Open(path, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	if err = unix.Fstat(fd, &st); err != nil {
		err = &os.PathError{Op: "fstat", Path: path, Err: err}
	} else {
		err = check(&st)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
