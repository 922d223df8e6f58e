package bootstrap

import (
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/internal/fabric/fdbell"
	"github.com/seed202c38ff/fabricnet/internal/shmdir"
)

// pageTries is how many names are tried: somebody else may have one.
const pageTries = 3

// CreatePage makes a page for the dialling side. Close also unlinks it, if Unlink has not.
func CreatePage() (p *Page, err error) {
	for range pageTries {
		if p, err = createPage(); !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	return p, err
}

func createPage() (*Page, error) {
	var nonce pageNonce
	rand.Read(nonce[:])
	file := shmdir.NewName()
	guard, err := shmdir.Create(pageDir, file, pageSize)
	if err != nil {
		return nil, fmt.Errorf("%w: %w (is %s full?)", errPage, err, pageDir)
	}
	mem, err := mapPage(int(guard.Fd()))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", errPage, err), os.Remove(guard.Name()), guard.Close())
	}
	mark := nonce.mark()
	copy(mem, mark[:])
	p := newPage(mem, nonce, true)
	p.name, p.guard = file, guard
	ownPages.Store(nonce, p)
	for _, side := range doorbells {
		path := pageDir + nonce.doorbellName(file, side)
		if err = unix.Mkfifo(path, 0o600); err != nil {
			err = &os.PathError{Op: "mkfifo", Path: path, Err: err}
			break
		}
	}
	if err == nil {
		err = p.openDoorbells(file, dialerDoorbell, listenerDoorbell)
	}
	if err == nil {
		err = p.sayWho()
	}
	if err != nil {
		_ = p.Close()
		return nil, fmt.Errorf("%w: %w", errPage, err)
	}
	return p, nil
}

// doorbells are the FIFOs' sides.
var doorbells = []string{dialerDoorbell, listenerDoorbell, leaderOf + dialerDoorbell, leaderOf + listenerDoorbell}

// openDoorbells opens this side's FIFOs and the peer's.
func (p *Page) openDoorbells(file, own, peer string) error {
	path := func(side string) string { return pageDir + p.nonce.doorbellName(file, side) }
	var err error
	if p.ownWatcher, err = openSleeper(path(own)); err != nil {
		return err
	}
	if p.ownLeader, err = openSleeper(path(leaderOf + own)); err != nil {
		return err
	}
	if err = p.peerWatcher.open(path(peer)); err != nil {
		return err
	}
	return p.peerLeader.open(path(leaderOf + peer))
}

// openSleeper opens this side's FIFO.
func openSleeper(path string) (sleeper, error) {
	fd, err := openDoorbell(path, unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	b, err := fdbell.New(fd)
	if err != nil {
		return nil, err // not b, which would be a sleeper that is not nil
	}
	return b, nil
}

// open opens the peer's FIFO, which must stay out of Go's netpoller: that would wake up each
// time this side rings. os.NewFile leaves out a descriptor that is in blocking mode when it is called.
func (r *ringer) open(path string) error {
	fd, err := openDoorbell(path, 0)
	if err != nil {
		return err
	}
	r.file = os.NewFile(uintptr(fd), path)
	if err = unix.SetNonblock(fd, true); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	r.conn, err = r.file.SyscallConn()
	return err
}

// openDoorbell opens a FIFO for reading and writing, and so does not wait for the other side.
func openDoorbell(path string, flags int) (fd int, err error) {
	return shmdir.Open(path, unix.O_RDWR|flags, checkFile(path, unix.S_IFIFO))
}

// ring writes a byte. Nobody reads it: since Go's netpoller is edge-triggered, each write wakes the peer, whatever
// is in there (epoll(7)). A FIFO that is full has to be emptied first.
func (r *ringer) ring() { _ = r.conn.Control(ring) }

func ring(fd uintptr) {
	if _, err := unix.Write(int(fd), oneByte[:]); errors.Is(err, unix.EAGAIN) {
		empty(fd)
		_, _ = unix.Write(int(fd), oneByte[:])
	}
}

// empty is a function of its own, so that goroutines that ring need not have a stack for it.
//
//go:noinline
func empty(fd uintptr) {
	var all [1 << 16]byte // what a FIFO holds
	_, _ = unix.Read(int(fd), all[:])
}

var oneByte [1]byte

func mapPage(fd int) ([]byte, error) {
	mem, err := unix.Mmap(fd, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return mem, os.NewSyscallError("mmap", err)
}

// OpenPage maps the page that a dialling side has made, if it is what it should be: a
// regular file of the right size, mode and user (this process's), that begins with the nonce's
// mark. It also fails if the two sides are in different PID namespaces, or if the dialling side
// gives this process's number and is not in this process.
func OpenPage(name string, nonce [16]byte) (*Page, error) {
	if err := checkPageName(name); err != nil {
		return nil, err
	}
	// O_NONBLOCK: whatever has this name, opening it must not wait.
	fd, err := shmdir.Open(pageDir+name, unix.O_RDWR|unix.O_NONBLOCK, checkFile(pageDir+name, unix.S_IFREG))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w at the listener (share the dialer's %s: --ipc=host, or the same volume)", errPage, err, pageDir)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errPage, err)
	}
	defer unix.Close(fd)
	mem, err := mapPage(fd)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errPage, err)
	}
	mark := pageNonce(nonce).mark()
	if subtle.ConstantTimeCompare(mem[:len(mark)], mark[:]) == 0 {
		_ = unix.Munmap(mem)
		return nil, fmt.Errorf("%w: %s%s: not made for this handshake", errPage, pageDir, name)
	}
	p := newPage(mem, nonce, false)
	if other, here := ownPages.Load(p.nonce); here {
		p.self.Store(true)
		other.(*Page).self.Store(true)
	}
	if err = p.openDoorbells(name, listenerDoorbell, dialerDoorbell); err == nil {
		err = p.sayWho()
	}
	if err == nil {
		err = p.reach()
	}
	if err != nil {
		_ = p.Close()
		return nil, fmt.Errorf("%w: %w", errPage, err)
	}
	return p, nil
}

// checkFile returns a check that a file is of the given type and accessible only to this process's
// user, and that a regular one is of a page's size.
func checkFile(path string, kind uint32) func(*unix.Stat_t) error {
	return func(st *unix.Stat_t) error {
		fault := ""
		switch {
		case st.Mode&unix.S_IFMT != kind && kind == unix.S_IFIFO:
			fault = "not a FIFO"
		case st.Mode&unix.S_IFMT != kind:
			fault = "not a regular file"
		case int(st.Uid) != os.Geteuid():
			fault = fmt.Sprintf("owned by uid %d, this process runs as uid %d", st.Uid, os.Geteuid())
		case st.Mode&0o777 != 0o600:
			fault = fmt.Sprintf("mode %#o, not 0600", st.Mode&0o777)
		case kind == unix.S_IFREG && st.Size != pageSize:
			fault = fmt.Sprintf("%d bytes, not %d", st.Size, pageSize)
		default:
			return nil
		}
		return fmt.Errorf("%s: %s", path, fault)
	}
}

// Unlink removes the page's names. It is called once both sides have the page open, or never
// will. On the side that did not create the page it does nothing.
func (p *Page) Unlink() error {
	if p.name == "" {
		return nil
	}
	var names []string
	for _, side := range doorbells {
		names = append(names, p.nonce.doorbellName(p.name, side))
	}
	names = append(names, p.name)
	p.name = ""
	ownPages.Delete(p.nonce)
	var errs []error
	for _, name := range names { // last the name that guards the others
		if err := unix.Unlink(pageDir + name); err != nil {
			errs = append(errs, &os.PathError{Op: "unlink", Path: pageDir + name, Err: err})
		}
	}
	_ = p.guard.Close()
	p.guard = nil
	return errors.Join(errs...)
}

// Close unlinks and unmaps the page, and ends what sleeps on its bells. The flags must not be used any more.
func (p *Page) Close() error {
	err := p.Unlink()
	for _, bell := range []sleeper{p.ownWatcher, p.ownLeader} {
		if bell != nil {
			_ = bell.Close() // fails only if it is closed already
		}
	}
	for _, f := range []*os.File{p.peerWatcher.file, p.peerLeader.file, p.proc} {
		if f != nil {
			_ = f.Close()
		}
	}
	if p.mem != nil {
		err = errors.Join(err, os.NewSyscallError("munmap", unix.Munmap(p.mem)))
		p.mem, p.own, p.peer, p.ownSelf, p.peerSelf = nil, nil, nil, nil, nil
	}
	return err
}
