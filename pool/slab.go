package pool

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// errSize is what an allocation fails with if its size makes no sense.
var errSize = errors.New("pool: invalid size")

// Slab is a piece of mapped memory: page-aligned, outside the Go heap, and, if
// NewSlab made it, faulted in and registered as a whole. Nothing may touch the memory
// after Close has been called. A Slab is not safe for concurrent use.
type Slab struct {
	budget   *Budget
	mem      []byte // nil once closed
	region   Region // nil if there is none (any more)
	unmapper Unmapper
	state    slabState
	paid     bool // its bytes are reserved in the budget by the slab itself: Close releases them
	shared   SharedName
}

// slabState says what lies at a slab's addresses, and who pays for it.
//
//	state    entered by            what lies there    charged
//	inUse    NewSlab, NewLazySlab  memory of its own  its size
//	sunk     Retire                the sink           nothing
//	foreign  OpenSlab              another process's  nothing here
type slabState uint8

const (
	inUse slabState = iota
	sunk
	foreign
)

// NewSlab maps size bytes, rounded up to whole pages, charges them to b, and
// registers them with r unless r is nil. The memory is zero.
func NewSlab(b *Budget, r Registrar, size int, access Access) (*Slab, error) {
	return newSlab(b, r, size, access, nil)
}

// newSlab is NewSlab, with memory that another process can map if there is a mark. It fails with
// errNotShared where there is no such memory.
func newSlab(b *Budget, r Registrar, size int, access Access, mark *Mark) (*Slab, error) {
	if size <= 0 || Pages(size) < size {
		return nil, fmt.Errorf("%w: slab of %d bytes", errSize, size)
	}
	if err := b.Reserve(int64(Pages(size))); err != nil {
		return nil, err
	}
	s, err := mapSlab(b, size, mark)
	if err != nil {
		b.Release(int64(Pages(size)))
		return nil, err
	}
	s.paid = true
	mem := s.mem
	adviseHuge(mem)
	// If a transfer is the first to touch a page, that costs it a fault, and costs
	// a provider that copies across address spaces far more than that.
	for at := 0; at < len(mem); at += piece {
		if at > 0 {
			// Faulting in all of it takes longer than other goroutines and threads want to
			// wait. If this thread did not sleep, other threads would wait for the
			// kernel's next tick, for up to 4 ms.
			pause(pauseTime)
		}
		populate(mem[at:min(at+piece, len(mem))])
	}
	if r == nil {
		return s, nil
	}
	region, err := r.Register(mem, access)
	if err != nil {
		err = fmt.Errorf("pool: registering %d bytes: %w", len(mem), err)
		return nil, errors.Join(err, s.Close())
	}
	s.region = region
	s.unmapper, _ = r.(Unmapper)
	return s, nil
}

// NewLazySlab maps size bytes, rounded up to whole pages, which the caller has
// reserved in b and goes on paying for. They are faulted in as they are touched, one
// small page at a time: mapping them takes microseconds, however many there are.
func NewLazySlab(b *Budget, size int) (*Slab, error) {
	s, err := mapSlab(b, size, nil)
	if err == nil {
		adviseSmall(s.mem)
	}
	return s, err
}

// Pay makes Close give the bytes of a lazy slab back to the budget: from now on the
// slab pays for them, and the caller does not.
func (s *Slab) Pay() { s.paid = true }

// Pages returns size rounded up to whole pages, in bytes.
func Pages(size int) int {
	page := os.Getpagesize()
	return (size + page - 1) &^ (page - 1)
}

// piece is how many bytes are faulted in, or given back, at a time: a huge page.
const piece = 2 << 20

// touch is populate where the kernel does not help.
func touch(mem []byte) {
	for i, page := 0, os.Getpagesize(); i < len(mem); i += page {
		mem[i] = 0
	}
}

// pauseTime is the pause between two pieces that are faulted in, each of which takes ten
// times as long. The kernel may take as long again to end the pause.
const pauseTime = 50 * time.Microsecond

func mapSlab(b *Budget, size int, mark *Mark) (s *Slab, err error) {
	s = &Slab{budget: b}
	if mark != nil {
		s.mem, s.shared, err = mapShared(Pages(size), *mark)
	} else {
		s.mem, err = mapMemory(Pages(size))
	}
	if err != nil {
		return nil, fmt.Errorf("pool: mapping %d bytes: %w", size, err)
	}
	b.mapped.Add(int64(len(s.mem)))
	return s, nil
}

// Bytes returns the slab's memory, nil after Close.
func (s *Slab) Bytes() []byte { return s.mem }

// Region returns the slab's registration, nil if it has none.
func (s *Slab) Region() Region { return s.region }

// Deregister withdraws the registration and keeps the memory, for as long as
// operations that a dead peer has begun may be under way. Calling it again does
// nothing.
func (s *Slab) Deregister() error {
	if s.region == nil {
		return nil
	}
	if err := s.region.Close(); err != nil {
		return fmt.Errorf("pool: deregistering %d bytes: %w", len(s.mem), err)
	}
	s.region = nil
	return nil
}

// Retire gives up the memory, but keeps its addresses until Close. It is for memory to
// which a peer's writes may be under way without any sign of them. libfabric's tcp and
// net providers look up only once where a write goes, when its header arrives, and copy
// the rest there however late it comes, until fi_close(3) of the endpoint. Anything else
// that was mapped there meanwhile would be overwritten. What still arrives goes to the sink. Nobody
// may use the slab any more, so the registration is withdrawn. If that fails, or there can be
// no sink, the slab goes on costing what it did before, and Retire may be tried again.
// Retiring a slab twice, or a closed one, does nothing.
func (s *Slab) Retire() error {
	if s.mem == nil || s.state != inUse {
		return nil
	}
	if err := s.Deregister(); err != nil {
		return err
	}
	unpoison(s.mem)
	if err := mapSink(s.mem); err != nil {
		return fmt.Errorf("pool: retiring %d bytes: %w", len(s.mem), err)
	}
	s.release(len(s.mem))
	s.state = sunk
	s.unshare()
	return nil
}

// release gives back to the budget what the slab costs, if it has size bytes.
func (s *Slab) release(size int) {
	switch s.state {
	case foreign:
		s.budget.releaseForeign(int64(size))
	case inUse:
		s.budget.mapped.Add(-int64(size))
		if s.paid {
			s.budget.Release(int64(size))
		}
	}
}

// unshare takes the pages of a shared slab away from the processes that have them mapped.
func (s *Slab) unshare() {
	if s.shared.Inode != 0 {
		dropShared(s.shared, len(s.mem))
		s.shared = SharedName{}
	}
}

// Close withdraws the registration, unmaps the memory and gives the bytes back to
// the budget. If the registration cannot be withdrawn, the fabric may still reach
// the memory: it then stays mapped and accounted for, and Close may be tried again.
// Closing a slab again does nothing.
func (s *Slab) Close() error {
	if s.mem == nil {
		return nil
	}
	if err := s.Deregister(); err != nil {
		return err
	}
	size := len(s.mem)
	if s.unmapper != nil {
		s.unmapper.Unmapping(s.mem)
	}
	unpoison(s.mem) // for whatever is mapped there next
	if err := unmapMemory(s.mem); err != nil {
		return fmt.Errorf("pool: unmapping %d bytes: %w", size, err)
	}
	s.unshare()
	s.mem = nil
	s.release(size)
	return nil
}
