package bootstrap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Providers that share memory copy large data from one process's memory to the other's by
// process number (process_vm_readv(2)) if the kernel lets them, and otherwise through shared
// memory. libfabric's shm has one side find out for both whether the kernel does, by writing to
// whatever process has the peer's number, at an address that is the peer's. So shm is used only if
// the number means the peer, and the kernel gives both sides the same answer. To make sure of that,
// each side says in the page who it is. Where the kernel forbids to look (ptrace(2)), nobody can
// tell whether that is true. So nothing else relies on it: whatever is mapped of the process of that
// number has to prove that it is the peer's (pool.Mark).

// Offsets of what a side says about itself, 8 bytes each, least significant first.
const (
	selfNamespace = 0  // inode number of its PID namespace
	selfNumber    = 8  // its process number there
	selfAddress   = 16 // address of the page in its memory
	selfVerdict   = 24 // whether it may read the other side's memory, once it knows
)

// Values of a verdict.
const (
	mayNotRead = iota + 1
	mayRead
)

// sayWho fills in what this side says about itself, except the verdict.
func (p *Page) sayWho() error {
	const path = "/proc/self/ns/pid"
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	for offset, v := range map[int]uint64{
		selfNamespace: st.Ino,
		selfNumber:    uint64(os.Getpid()),
		selfAddress:   uint64(uintptr(unsafe.Pointer(&p.mem[0]))),
	} {
		binary.LittleEndian.PutUint64(p.ownSelf[offset:], v)
	}
	return nil
}

// reach finds out whether this side may read the other's memory, and says so in the page. It
// fails if the two sides are in different PID namespaces, or if the process of the other side's
// number is not the other side.
func (p *Page) reach() error {
	said := func(self []byte, offset int) uint64 { return binary.LittleEndian.Uint64(self[offset:]) }
	if said(p.ownSelf, selfNamespace) != said(p.peerSelf, selfNamespace) {
		return errors.New("the two sides are in different PID namespaces")
	}
	number := int(said(p.peerSelf, selfNumber))
	if number == os.Getpid() && !p.self.Load() {
		return errors.New("the other side gives the process number of this one")
	}
	// A thread's number would do in /proc, and for the reading, too: it might be one of ours.
	if unix.Tgkill(number, number, 0) == unix.ESRCH {
		return fmt.Errorf("the other side gives %d, which is no process's number", number)
	}
	// Opened before it is known whose number this is: once open, it cannot lead to another process.
	p.proc, _ = os.Open(fmt.Sprintf("/proc/%d", number))
	var mark [16]byte
	local := []unix.Iovec{{Base: &mark[0]}}
	local[0].SetLen(len(mark))
	remote := []unix.RemoteIovec{{Base: uintptr(said(p.peerSelf, selfAddress)), Len: len(mark)}}
	verdict := uint64(mayNotRead)
	switch _, err := unix.ProcessVMReadv(number, local, remote, 0); {
	case err == nil && mark == p.nonce.mark():
		verdict = mayRead
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOSYS):
	case err == nil:
		return fmt.Errorf("process %d is not the other side", number)
	default:
		return fmt.Errorf("process %d is not the other side: %w", number, os.NewSyscallError("process_vm_readv", err))
	}
	binary.LittleEndian.PutUint64(p.ownSelf[selfVerdict:], verdict)
	return nil
}

// meet is reach for the dialling side, which by then can read the listening side's verdict. It also
// fails if the two verdicts differ.
func (p *Page) meet() error {
	if err := p.reach(); err != nil {
		return fmt.Errorf("%w: %w", errPage, err)
	}
	if binary.LittleEndian.Uint64(p.ownSelf[selfVerdict:]) != binary.LittleEndian.Uint64(p.peerSelf[selfVerdict:]) {
		return fmt.Errorf("%w: only one of the two sides may read the other's memory (ptrace(2) says who may)", errPage)
	}
	return nil
}
