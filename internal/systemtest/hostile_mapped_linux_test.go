//go:build linux && cgo

package systemtest

import (
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/pool"
)

// ringSize is the size of the ring that a hostile peer grants, in bytes, and of the first one that it is granted.
const ringSize = 256 << 10

func init() {
	attacks["scribbled ring"] = attack{run: scribbledRing, mapped: true}
	attacks["scribbled ring after the end"] = attack{run: scribbledAfterEnd, mapped: true, counted: violations, cut: true}
	attacks["ring that goes away"] = attack{run: ringGoesAway, mapped: true, either: true}
	for name, file := range map[string]func() (int, error){
		"no file":                func() (int, error) { return 1 << 20, nil },
		"a terminal or pipe":     func() (int, error) { return int(os.Stdin.Fd()), nil },
		"a file that is cut off": shrinking,
		"a file without memory":  sparse,
	} {
		attacks["ring in "+name] = attack{run: ringIn(func(*hostile) (int, error) { return file() }), mapped: true}
	}
	attacks["ring in another peer's memory"] = attack{run: ringIn((*hostile).ofAnother), mapped: true}
}

// ofAnother opens memory that the listener's process shares with another peer.
func (h *hostile) ofAnother() (int, error) {
	dir := h.page.Proc().Name() + "/fd"
	list, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, e := range list {
		path := dir + "/" + e.Name()
		var st unix.Stat_t
		if to, _ := os.Readlink(path); strings.HasPrefix(to, "/memfd:fabricnet-landing") && unix.Stat(path, &st) == nil && st.Size >= ringSize {
			return unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		}
	}
	return 0, errors.New("the listener shares no memory with another peer")
}

// shrinking returns a file that is soon cut off, and sealed only after that.
func shrinking() (int, error) {
	fd, err := unix.MemfdCreate("shrinking", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return 0, err
	}
	if err := unix.Fallocate(fd, 0, 0, ringSize); err != nil { // sets the file's size, too
		return 0, err
	}
	time.AfterFunc(rand.N(2*time.Millisecond), func() {
		_ = unix.Ftruncate(fd, 4096)
		_ = seal(fd)
	})
	return fd, nil
}

// sparse returns a sealed file without memory: the process that touches a page pays for it.
func sparse() (int, error) {
	fd, err := unix.MemfdCreate("sparse", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return 0, err
	}
	if err := unix.Ftruncate(fd, ringSize); err != nil {
		return 0, err
	}
	return fd, seal(fd)
}

func seal(fd int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	return err
}

// mappedRing opens a stream, and maps the ring that it is granted, along with whatever lies beside it.
func (h *hostile) mappedRing() (l framing.Lease, slab *pool.Slab, err error) {
	if l, err = h.leased(); err != nil {
		return l, nil, err
	}
	slab, err = h.mapped(l.Remote)
	return l, slab, err
}

// mapped maps memory of the listener's.
func (h *hostile) mapped(r framing.Remote) (*pool.Slab, error) {
	name := pool.SharedName{FD: r.FD, Inode: r.Key, Mark: framing.MemoryMark(h.remote.Token)}
	return pool.OpenSlab(pool.NewBudget(0), h.page.Proc(), name)
}

// shares makes memory that the listener can map.
func (h *hostile) shares(size int) (*pool.Arena, framing.Remote, error) {
	a := pool.NewArena(pool.NewBudget(0), nil, pool.AccessRemoteWrite, size)
	a.Share(framing.MemoryMark(h.local.Token))
	slab, err := a.Map(size)
	if err != nil {
		return nil, framing.Remote{}, err
	}
	a.Add(slab)
	b := a.Get(size)
	return a, framing.Remote{Addr: b.Offset, Key: b.Shared.Inode, FD: b.Shared.FD}, nil
}

// scribble writes to b until end is called.
func scribble(b []byte) (end func()) {
	stop := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				b[rand.IntN(len(b))]++
			}
		}
	})
	return func() { close(stop); done.Wait() }
}

// through sends half a ring, whatever the memory contains, through one in which begin bytes have been sent.
func (h *hostile) through(l framing.Lease, begin uint32) error {
	piece := min(l.Chunk, 64<<10)
	for pos := begin; pos < begin+ringSize/2; pos += piece {
		at := framing.Large{Lease: l.Index, Seq: uint16(pos / piece), Length: piece, Ring: uint64(pos)}
		if err := h.send(announce(1, uint64(pos), at)); err != nil {
			return err
		}
	}
	return nil
}

// scribbledRing alters what it has sent while that is being read. The reader's data is
// worthless then, but nothing else is hurt.
func scribbledRing(h *hostile) error {
	l, slab, err := h.mappedRing()
	if err != nil {
		return err
	}
	defer slab.Close()
	defer scribble(slab.Bytes())()
	if err := h.through(l, 0); err != nil {
		return err
	}
	return h.asked() // the data has been read, and is about to be sent back
}

// scribbledAfterEnd goes on writing to a ring that the listener has taken back.
func scribbledAfterEnd(h *hostile) error {
	_, slab, err := h.mappedRing()
	if err != nil {
		return err
	}
	defer slab.Close()
	defer scribble(slab.Bytes())()
	if err := h.endTwice(); err != nil {
		return err
	}
	if !h.cutOff(rdmatest.Patience) {
		return errors.New("two ends, and not cut off")
	}
	time.Sleep(100 * time.Millisecond) // meanwhile the good client goes on, and checks its data
	return nil
}

// asked waits until the listener asks for a ring, in a frame with or without data.
func (h *hostile) asked() error {
	for {
		f, err := h.await(framing.TypeData)
		if err != nil || f.Flags&framing.FlagWant != 0 {
			return err
		}
	}
}

// grants makes the listener ask for a ring, which it needs to send back what comes through its
// own, and grants one. It returns the listener's, which is full of what is to come back.
func (h *hostile) grants(grant framing.Lease) (l framing.Lease, err error) {
	l, slab, err := h.mappedRing()
	if err != nil {
		return l, err
	}
	defer slab.Close()
	if err := h.through(l, 0); err != nil {
		return l, err
	}
	if err := h.asked(); err != nil {
		return l, err
	}
	f := frame{framing.Header{Type: framing.TypeLease, Stream: 1}, make([]byte, framing.LeaseSize)}
	grant.Index, grant.Chunk, grant.Size = 3, 64<<10, ringSize
	grant.Encode(f.payload)
	if err := h.send(f); err != nil {
		return l, err
	}
	return l, h.through(l, ringSize/2)
}

// ringIn grants a ring that is said to lie in a file. The listener does not map it, and sends frames.
func ringIn(file func(*hostile) (int, error)) func(*hostile) error {
	return func(h *hostile) error {
		fd, err := file(h)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err == nil && fd != int(os.Stdin.Fd()) {
			defer unix.Close(fd)
		}
		if _, err := h.grants(framing.Lease{Remote: framing.Remote{FD: uint32(fd), Key: max(st.Ino, 1)}}); err != nil {
			return err
		}
		_, err = h.await(framing.TypeData)
		return err
	}
}

// ringGoesAway grants a valid ring. While the listener copies to it, it takes the ring's memory
// away, and then the file.
func ringGoesAway(h *hostile) error {
	rings, ring, err := h.shares(ringSize)
	if err != nil {
		return err
	}
	defer rings.Close()
	l, err := h.grants(framing.Lease{Remote: ring})
	if err != nil {
		return err
	}
	for i := range 4 {
		if i == 2 { // half of what was sent is back, so there is room for as much
			if err := h.through(l, ringSize); err != nil {
				return err
			}
		}
		if _, err := h.await(framing.TypeLarge); err != nil {
			return err
		}
		if err := unix.Fallocate(int(ring.FD), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, ringSize); err != nil {
			return err
		}
	}
	return nil
}
