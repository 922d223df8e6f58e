package bootstrap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Processes that share memory find each other's landing rings by process number, in /proc
// (pool.OpenSlab), and libfabric's shm finds out by that number, too, whether it could copy from
// process to process (process_vm_writev(2)): it writes to whatever process has it. So each side
// says in the page which process it is, and in which PID namespace. Nothing is believed of a process
// because of its number: whatever is mapped of it has to prove that it is the peer's (pool.Mark),
// for the first time in the path check.

// Offsets of what a side says about itself, 8 bytes each, least significant first.
const (
	selfNamespace = 0 // inode number of its PID namespace
	selfNumber    = 8 // its process number there
)

// sayWho fills in what this side says about itself.
func (p *Page) sayWho() error {
	const path = "/proc/self/ns/pid"
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	binary.LittleEndian.PutUint64(p.ownSelf[selfNamespace:], st.Ino)
	binary.LittleEndian.PutUint64(p.ownSelf[selfNumber:], uint64(os.Getpid()))
	return nil
}

// reach opens the other side's directory in /proc. It fails if the two sides are in different PID
// namespaces, or if there is no such process to be seen, or none whose files may be opened. The other
// side may print the error.
func (p *Page) reach() error {
	said := func(self []byte, offset int) uint64 { return binary.LittleEndian.Uint64(self[offset:]) }
	if said(p.ownSelf, selfNamespace) != said(p.peerSelf, selfNamespace) {
		return errors.New("the two sides are in different PID namespaces (share one: --pid=host, shareProcessNamespace)")
	}
	own, other := "listener", "dialer"
	if p.dialer {
		own, other = other, own
	}
	number := int(said(p.peerSelf, selfNumber))
	if number == os.Getpid() && !p.self.Load() {
		return fmt.Errorf("the %s gives the process number of the %s", other, own)
	}
	// A thread's number would do in /proc, too: it might be one of ours.
	if unix.Tgkill(number, number, 0) == unix.ESRCH {
		return fmt.Errorf("the %s gives %d, which is no process's number where the %s is", other, number, own)
	}
	var err error // once open, the directory cannot lead to another process
	if p.proc, err = os.Open(fmt.Sprintf("/proc/%d", number)); err == nil {
		// What a link in there leads to is told only to who may open the files there, too: proc(5).
		_, err = unix.Readlinkat(int(p.proc.Fd()), "exe", make([]byte, 1))
	}
	if err != nil {
		return fmt.Errorf("the %s may not open the %s's files: %w (%s)", own, other, err, cureOf(err))
	}
	return nil
}

// cureOf says what to do about a directory of /proc that cannot be opened, or not be read.
func cureOf(err error) string {
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return "raise ulimit -n"
	case errors.Is(err, unix.ENOENT):
		return "is /proc that of this PID namespace?"
	}
	return "same user, group and capabilities, same user namespace? see docs/containers.md"
}

// meet is reach for the dialling side, once the listening side has said who it is.
func (p *Page) meet() error {
	if err := p.reach(); err != nil {
		return fmt.Errorf("%w: %w", errPage, err)
	}
	return nil
}
