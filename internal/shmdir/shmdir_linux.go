package shmdir

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// NewName returns a name that nobody can guess.
func NewName() string {
	var id [16]byte
	rand.Read(id[:])
	return Prefix + hex.EncodeToString(id[:])
}

// Create makes a file of size bytes, which only this user can open, holds it
// locked, and only then gives it its name. Its memory is reserved: on a full tmpfs
// a store to a page that is merely promised raises SIGBUS.
func Create(dir, name string, size int64) (*os.File, error) {
	path := filepath.Join(dir, name)
	fail := func(op string, err error) error { return &os.PathError{Op: op, Path: path, Err: err} }
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fail("create", err)
	}
	f := os.NewFile(uintptr(fd), path)
	if err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		err = fail("flock", err)
	} else if err = reserve(fd, size); err != nil {
		err = fail("fallocate", err)
	} else if err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW); err != nil {
		err = fail("link", err)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Claim guards a name that somebody else has made, such as libfabric.
type Claim struct {
	file   *os.File
	target string
	inode  uint64
	remove sync.Once
}

// NewClaim guards the file called name in dir.
func NewClaim(dir, name string) (*Claim, error) {
	var st unix.Stat_t
	target := filepath.Join(dir, name)
	if err := unix.Lstat(target, &st); err != nil {
		return nil, &os.PathError{Op: "lstat", Path: target, Err: err}
	}
	text := fmt.Sprintf("%s %d\n", name, st.Ino)
	f, err := Create(dir, NewName()+claimSuffix, int64(len(text)))
	if err != nil {
		return nil, err
	}
	if _, err := f.WriteAt([]byte(text), 0); err != nil {
		return nil, errors.Join(err, os.Remove(f.Name()), f.Close())
	}
	return &Claim{file: f, target: target, inode: st.Ino}, nil
}

// Remove removes the name, if it is still there and that of the same file, and ends
// the claim. A second call does nothing.
func (c *Claim) Remove() (err error) {
	c.remove.Do(func() {
		var st unix.Stat_t
		if unix.Lstat(c.target, &st) == nil && st.Ino == c.inode {
			err = os.Remove(c.target)
		}
		if rerr := os.Remove(c.file.Name()); !errors.Is(rerr, os.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
		_ = c.file.Close()
	})
	return err
}

// Clean removes what processes of this user that have died have left in dir.
func Clean(dir string) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range list {
		if guardName.MatchString(e.Name()) {
			cleanOne(dir, e.Name(), list)
		}
	}
}

// cleanOne removes a guard whose owner has died, and what it guards: names that
// begin with its own, and for a claim the name that it contains.
func cleanOne(dir, name string, list []os.DirEntry) {
	fd, err := unix.Open(filepath.Join(dir, name), unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var st unix.Stat_t
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil || unix.Fstat(fd, &st) != nil ||
		st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Nlink == 0 {
		return // in use, or not what it seems, or somebody else has just removed it
	}
	if strings.HasSuffix(name, claimSuffix) {
		cleanClaimed(dir, f)
	}
	for _, e := range list {
		if strings.HasPrefix(e.Name(), name+".") {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	_ = os.Remove(filepath.Join(dir, name)) // last: as long as it is there, it guards
}

// cleanClaimed removes what a claim is about, unless it is another file by now.
func cleanClaimed(dir string, claim *os.File) {
	var (
		buf   [256]byte
		name  string
		inode uint64
		st    unix.Stat_t
	)
	n, _ := claim.ReadAt(buf[:], 0)
	if _, err := fmt.Sscanf(string(buf[:n]), "%s %d\n", &name, &inode); err != nil || !regionName.MatchString(name) {
		return
	}
	path := filepath.Join(dir, name)
	if unix.Lstat(path, &st) == nil && st.Ino == inode && int(st.Uid) == os.Geteuid() {
		_ = os.Remove(path)
	}
}
