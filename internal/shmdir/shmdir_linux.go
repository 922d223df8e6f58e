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

// Create makes a file of size bytes that only this user can open, locks it, and only then
// gives it its name. The lock lasts until the file is closed. The file's memory is reserved: on
// a full tmpfs a store to a page that is merely promised raises SIGBUS.
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

// Guard guards names that others make, such as libfabric: those that begin with its Prefix.
// The guard is there before they are, so that a process that is killed while making them
// leaves nothing that Clean does not find.
type Guard struct {
	dir, name string

	mu   sync.Mutex
	held int
	file *os.File // set while held is not 0
}

// NewGuard returns a guard that nobody holds yet.
func NewGuard(dir string) *Guard { return &Guard{dir: dir, name: NewName()} }

// Prefix returns what the guarded names begin with.
func (g *Guard) Prefix() string { return g.name + "." }

// Hold keeps the guard in place until Release. It may be called several times, each with a
// Release of its own.
func (g *Guard) Hold() (err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held == 0 {
		if g.file, err = Create(g.dir, g.name, 0); err != nil {
			return err
		}
	}
	g.held++
	return nil
}

// Release ends one Hold. The last Release removes the guard's own name.
func (g *Guard) Release() (err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held--; g.held == 0 {
		if err = os.Remove(g.file.Name()); errors.Is(err, os.ErrNotExist) {
			err = nil // somebody else has removed it
		}
		_ = g.file.Close()
	}
	return err
}

// Clean removes what this user's dead processes have left in dir.
func Clean(dir string) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range list {
		if guardName.MatchString(e.Name()) {
			cleanOne(dir, e.Name())
		}
	}
}

var errNotOurs = errors.New("no guard of this user's")

// cleanOne removes a guard, if its owner has died, and what it guards: the names that begin with
// its own and a dot.
func cleanOne(dir, name string) {
	fd, err := Open(filepath.Join(dir, name), unix.O_RDWR|unix.O_NONBLOCK, func(st *unix.Stat_t) error {
		if st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() {
			return errNotOurs
		}
		return nil
	})
	if err != nil {
		return
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var st unix.Stat_t
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil || unix.Fstat(fd, &st) != nil || st.Nlink == 0 {
		return // in use, or somebody else has just removed it
	}
	list, err := os.ReadDir(dir) // not before: only now does it list all that the owner made before it died
	if err != nil {
		return
	}
	for _, e := range list {
		if strings.HasPrefix(e.Name(), name+".") {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	_ = os.Remove(filepath.Join(dir, name)) // last: as long as it is there, it guards the others
}
