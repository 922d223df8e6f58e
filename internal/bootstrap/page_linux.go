package bootstrap

import (
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/internal/shmdir"
)

// CreatePage makes a page for the dialling side. Close also unlinks it, if Unlink has not.
func CreatePage() (*Page, error) {
	var nonce [16]byte
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
	copy(mem, nonce[:])
	p := newPage(mem, nonce, true)
	p.name, p.guard = file, guard
	for _, end := range []string{dialerDoorbell, listenerDoorbell} {
		if err = unix.Mkfifo(pageDir+file+end, 0o600); err != nil {
			err = &os.PathError{Op: "mkfifo", Path: pageDir + file + end, Err: err}
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

// openDoorbells opens this side's FIFO and the peer's.
func (p *Page) openDoorbells(file, own, peer string) (err error) {
	if p.ownDoorbell, err = openDoorbell(pageDir+file+own, unix.O_NONBLOCK); err != nil {
		return err
	}
	// This one must stay out of Go's netpoller, which would wake up each time this side rings.
	// os.NewFile leaves out a descriptor that is in blocking mode when it is called.
	if p.peerDoorbell, err = openDoorbell(pageDir+file+peer, 0); err != nil {
		return err
	}
	if err = unix.SetNonblock(int(p.peerDoorbell.Fd()), true); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	p.peerConn, err = p.peerDoorbell.SyscallConn()
	return err
}

// openDoorbell opens a FIFO for reading and writing, and so does not wait for the other side.
func openDoorbell(path string, flags int) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	if err := checkFile(fd, unix.S_IFIFO); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Ring wakes the peer. After Close it does nothing.
func (p *Page) Ring() { _ = p.peerConn.Control(ring) }

// ring writes a byte, whose value does not matter. If the FIFO is full, the peer has enough
// to wake up by.
func ring(fd uintptr) { _, _ = unix.Write(int(fd), oneByte[:]) }

var oneByte [1]byte

// Listen calls rung when the peer has rung, once for all the rings that it finds, until Close. It
// does not read on until there is nothing left, as os.File does for each Read: after a read that did
// not fill the buffer the FIFO was empty, so that whatever comes next wakes Listen again (epoll(7)).
func (p *Page) Listen(rung func()) {
	conn, err := p.ownDoorbell.SyscallConn()
	if err != nil {
		return // it is closed
	}
	// The peer can write many rings by one system call.
	var buf [4096]byte
	_ = conn.Read(func(fd uintptr) (done bool) { // it fails once it is closed
		for {
			n, err := unix.Read(int(fd), buf[:])
			if n > 0 {
				rung()
			}
			if n < len(buf) && !errors.Is(err, unix.EINTR) {
				return false
			}
		}
	})
}

func mapPage(fd int) ([]byte, error) {
	mem, err := unix.Mmap(fd, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return mem, os.NewSyscallError("mmap", err)
}

// OpenPage maps the page that a dialling side has made, if it is what it should be: a
// regular file of the right size, mode and user (this process's), that contains the nonce. It
// also fails if the two sides are in different PID namespaces, or the number that the dialling
// side gives is not its process number here.
func OpenPage(name string, nonce [16]byte) (*Page, error) {
	if err := checkPageName(name); err != nil {
		return nil, err
	}
	// O_NONBLOCK: whatever has this name, opening it must not wait.
	fd, err := unix.Open(pageDir+name, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errPage, &os.PathError{Op: "open", Path: pageDir + name, Err: err})
	}
	defer unix.Close(fd)
	if err := checkFile(fd, unix.S_IFREG); err != nil {
		return nil, fmt.Errorf("%w: %s%s: %w", errPage, pageDir, name, err)
	}
	mem, err := mapPage(fd)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errPage, err)
	}
	if subtle.ConstantTimeCompare(mem[:len(nonce)], nonce[:]) == 0 {
		_ = unix.Munmap(mem)
		return nil, fmt.Errorf("%w: %s%s: wrong nonce", errPage, pageDir, name)
	}
	p := newPage(mem, nonce, false)
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

// checkFile makes sure that a file is of the given type and accessible only to this process's
// user, and that a regular one is of a page's size.
func checkFile(fd int, kind uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	switch {
	case st.Mode&unix.S_IFMT != kind && kind == unix.S_IFIFO:
		return errors.New("not a FIFO")
	case st.Mode&unix.S_IFMT != kind:
		return errors.New("not a regular file")
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("owned by uid %d, this process runs as uid %d", st.Uid, os.Geteuid())
	case st.Mode&0o777 != 0o600:
		return fmt.Errorf("mode %#o, not 0600", st.Mode&0o777)
	case kind == unix.S_IFREG && st.Size != pageSize:
		return fmt.Errorf("%d bytes, not %d", st.Size, pageSize)
	}
	return nil
}

// Unlink removes the page's names. It is called once both sides have the page open, or never
// will. On the side that did not create the page it does nothing.
func (p *Page) Unlink() error {
	if p.name == "" {
		return nil
	}
	path := pageDir + p.name
	p.name = ""
	var errs []error
	for _, end := range []string{dialerDoorbell, listenerDoorbell, ""} { // last the name that guards the others
		if err := unix.Unlink(path + end); err != nil {
			errs = append(errs, &os.PathError{Op: "unlink", Path: path + end, Err: err})
		}
	}
	_ = p.guard.Close()
	p.guard = nil
	return errors.Join(errs...)
}

// Close unlinks and unmaps the page, and ends Listen. The flags must not be used any more.
func (p *Page) Close() error {
	err := p.Unlink()
	for _, doorbell := range []*os.File{p.ownDoorbell, p.peerDoorbell, p.proc} {
		if doorbell != nil {
			_ = doorbell.Close() // fails only if it is closed already
		}
	}
	if p.mem != nil {
		err = errors.Join(err, os.NewSyscallError("munmap", unix.Munmap(p.mem)))
		p.mem, p.own, p.peer, p.ownSelf, p.peerSelf = nil, nil, nil, nil, nil
	}
	return err
}
