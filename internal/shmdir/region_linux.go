package shmdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits of a region's size, in bytes: libfabric reads the first page before it knows more, and
// none of its settings makes a region larger than maxRegion.
const (
	minRegion = 4 << 10
	maxRegion = 4 << 30

	maxRegionName = 255 // NAME_MAX
)

// CheckDir returns an error for a directory in which other users could take the name of one of
// this user's files and give it to a file of theirs. If they cannot, what has been found out about
// a name stays true.
func CheckDir(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s is no directory", dir)
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d, who could exchange the files in it: chown root %s", dir, st.Uid, dir)
	case st.Mode&unix.S_ISVTX == 0 && st.Mode&0o022 != 0:
		return fmt.Errorf("%s has mode %04o, so that others could exchange the files in it: chmod +t %s", dir, st.Mode&0o7777, dir)
	}
	return nil
}

// SpaceError says that a directory is too full for a region. It wraps unix.ENOSPC.
type SpaceError struct {
	Dir        string
	Need, Free uint64 // bytes
}

func (e *SpaceError) Error() string {
	return fmt.Sprintf("needs %d MiB free in %s and there are %d: enlarge it (mount -o remount,size=... or docker --shm-size=...) or remove stale files from it",
		e.Need>>20, e.Dir, e.Free>>20)
}

func (e *SpaceError) Unwrap() error { return unix.ENOSPC }

// CheckSpace fails with a *SpaceError if fewer than need bytes are free in dir. A file system
// without a limit always has enough.
func CheckSpace(dir string, need uint64) error {
	free, size, err := space(dir)
	switch {
	case err != nil:
		return fmt.Errorf("needs a tmpfs on %s (%w)", dir, err)
	case size > 0 && free < need:
		return &SpaceError{dir, need, free}
	}
	return nil
}

// Plenty reports whether at least half of dir is free, and at least need bytes.
func Plenty(dir string, need uint64) bool {
	free, size, err := space(dir)
	return err == nil && (size == 0 || free >= max(size/2, need))
}

// space returns how many bytes are free in dir, and how many there are in all; size is 0 without a
// limit (mount -o size=0).
func space(dir string) (free, size uint64, err error) {
	var st unix.Statfs_t
	err = unix.Statfs(dir, &st)
	return st.Bavail * uint64(st.Bsize), st.Blocks * uint64(st.Bsize), err
}

// Region is an open file that holds the memory of an endpoint.
type Region struct {
	file *os.File
	dir  string
	stat unix.Stat_t
}

// OpenRegion opens the file called name in dir. It refuses what is not a regular file, belongs to
// another user, may be opened by others, has another name, or cannot be a region by its size: neither
// libfabric nor the side that names a region checks any of this.
func OpenRegion(dir, name string) (*Region, error) {
	// Names come from peers, and get into errors and logs.
	odd := func(r rune) bool { return r <= ' ' || r > '~' || r == '/' }
	if name == "" || name == "." || name == ".." || len(name) > maxRegionName || strings.ContainsFunc(name, odd) {
		return nil, fmt.Errorf("%.64q is no name of a region", name)
	}
	path := filepath.Join(dir, name)
	r := &Region{dir: dir}
	fd, err := Open(path, unix.O_RDWR|unix.O_NONBLOCK, func(st *unix.Stat_t) error {
		r.stat = *st
		return checkRegion(path, st)
	})
	if err != nil {
		return nil, err
	}
	r.file = os.NewFile(uintptr(fd), path)
	return r, nil
}

func checkRegion(path string, st *unix.Stat_t) error {
	fault := ""
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		fault = "it is no regular file"
	case int(st.Uid) != os.Geteuid():
		fault = fmt.Sprintf("it belongs to user %d", st.Uid)
	case st.Mode&0o077 != 0:
		fault = fmt.Sprintf("others may open it, its mode is %04o", st.Mode&0o7777)
	case st.Nlink != 1:
		fault = fmt.Sprintf("it has %d names", st.Nlink)
	case st.Size < minRegion || st.Size > maxRegion:
		fault = fmt.Sprintf("it has %d bytes", st.Size)
	default:
		return nil
	}
	return fmt.Errorf("%s is not to be trusted: %s", path, fault)
}

// Reserve has the file system set memory aside for the whole file. It fails with a
// *SpaceError if there is not enough.
func (r *Region) Reserve() error {
	err := reserve(r.fd(), r.stat.Size)
	if errors.Is(err, unix.ENOSPC) {
		if full := CheckSpace(r.dir, uint64(r.stat.Size)); full != nil {
			return full
		}
	}
	if err != nil {
		return &os.PathError{Op: "fallocate", Path: r.file.Name(), Err: err}
	}
	return nil
}

// Reserved fails unless memory has been set aside for the whole file: a store to a page
// that is merely promised raises SIGBUS where the file system is full.
func (r *Region) Reserved() error {
	if have := r.stat.Blocks * 512; have < r.stat.Size {
		return fmt.Errorf("%s has memory for %d of its %d bytes", r.file.Name(), have, r.stat.Size)
	}
	return nil
}

// Layout returns the first byte, in which every libfabric keeps the version of the layout
// (struct smr_region). It is compared because libraries of equal versions may have been built with
// changes.
func (r *Region) Layout() (byte, error) {
	var b [1]byte
	_, err := r.file.ReadAt(b[:], 0)
	return b[0], err
}

// Close closes the file. This has no effect on the memory.
func (r *Region) Close() error { return r.file.Close() }

func (r *Region) fd() int { return int(r.file.Fd()) }

// reserve calls fallocate(2) in pieces, since a signal ends a call and undoes what it has done.
func reserve(fd int, size int64) error {
	const piece = 1 << 20
	for off := int64(0); off < size; {
		switch err := unix.Fallocate(fd, 0, off, min(piece, size-off)); err {
		case nil:
			off += piece
		case unix.EINTR:
		default:
			return err
		}
	}
	return nil
}
