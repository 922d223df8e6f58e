package pool

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
)

// MinBlock is the size of the smallest block in bytes: a page on most machines.
const MinBlock = 4 << 10

// ErrDeregistered is what Alloc fails with after Void, Deregister or Close.
var ErrDeregistered = errors.New("pool: memory is deregistered")

// Arena is memory that is handed out in blocks: the landing rings that one peer
// may write to, or memory that RDMA writes are made from. Each peer has a landing
// arena of its own, with its own slabs and registrations, so that the keys that one
// peer holds open nothing of another's and can be voided when the peer goes. An
// Arena is not safe for concurrent use, except for Map.
type Arena struct {
	budget    *Budget
	registrar Registrar
	access    Access
	slabSize  int
	shared    bool // see Share, as for mark
	mark      Mark
	void      bool // Void, Deregister or Close was called
	slabs     []*arenaSlab
	blocks    int
	bytes     int64
	mapped    int64 // bytes in slabs
}

type arenaSlab struct {
	*Slab
	buddy buddy
	late  bool // a block was in use when Void was called: writes may be under way
}

// size is the number of bytes in the slab, even after it is closed.
func (s *arenaSlab) size() int64 { return int64(len(s.buddy) / 2 * MinBlock) }

// drop forgets the slabs for which gone returns true.
func (a *Arena) drop(gone func(*arenaSlab) bool) {
	a.slabs = slices.DeleteFunc(a.slabs, func(s *arenaSlab) bool {
		if !gone(s) {
			return false
		}
		a.mapped -= s.size()
		return true
	})
}

// Block is a piece of an Arena. Its fields must not be changed.
type Block struct {
	Bytes []byte  // aligned to Align; the length is a power of two
	Desc  uintptr // for local operations
	Addr  uint64  // of the first byte, as a peer must name it
	Key   uint64  // of the region that the block lies in

	Shared SharedName // of the slab that the block lies in
	Offset uint64     // of the first byte, in that slab

	arena *Arena // nil once free
	slab  *arenaSlab
	block int
}

// ArenaStats is a snapshot of an Arena.
type ArenaStats struct {
	Slabs  int
	Mapped int64 // bytes in the slabs
	Blocks int
	InUse  int64 // bytes in the blocks
}

// NewArena returns an arena without any slab yet. Its slabs have slabSize bytes, a
// power of two of at least MinBlock, or the size that Map is asked for. They count
// against b and are registered with r for access, unless r is nil.
func NewArena(b *Budget, r Registrar, access Access, slabSize int) *Arena {
	if slabSize < MinBlock || slabSize&(slabSize-1) != 0 {
		panic("pool: slab size must be a power of two of at least MinBlock")
	}
	return &Arena{budget: b, registrar: r, access: access, slabSize: slabSize}
}

// Share makes Map return shared slabs with that mark from now on. It fails where the system does not
// allow that.
func (a *Arena) Share(mark Mark) { a.shared, a.mark = true, mark }

// Alloc returns a block of at least size bytes: MinBlock or the next power of
// two, at most the slab size. It may have to map and register a slab, which takes
// long. It fails with ErrBudget if the budget has no room for one.
func (a *Arena) Alloc(size int) (*Block, error) {
	if a.void {
		return nil, ErrDeregistered
	}
	if size <= 0 || size > a.slabSize {
		return nil, fmt.Errorf("%w: block of %d bytes in slabs of %d", errSize, size, a.slabSize)
	}
	if b := a.Get(size); b != nil {
		return b, nil
	}
	slab, err := a.Map(a.slabSize)
	if err != nil {
		return nil, err
	}
	a.Add(slab)
	return a.Get(size), nil
}

// Get is Alloc from the slabs that are there already: it takes no time, and returns
// nil if none has room.
func (a *Arena) Get(size int) *Block {
	if a.void || size <= 0 || size > a.slabSize {
		return nil
	}
	size = max(MinBlock, 1<<bits.Len(uint(size-1)))
	for _, s := range a.slabs {
		if b := a.carve(s, size); b != nil {
			return b
		}
	}
	return nil
}

// Map makes a slab of size bytes for Add: a power of two of at least MinBlock, and at most
// the arena's slab size. It takes long, and may be called while others use the arena.
func (a *Arena) Map(size int) (*Slab, error) {
	if size < MinBlock || size > a.slabSize || size&(size-1) != 0 {
		return nil, fmt.Errorf("%w: slab of %d bytes in an arena of %d", errSize, size, a.slabSize)
	}
	if a.shared {
		return newSharedSlab(a.budget, a.registrar, size, a.access, a.mark)
	}
	return NewSlab(a.budget, a.registrar, size, a.access)
}

// Add adds a slab that Map has made, or that Trim has given up.
func (a *Arena) Add(slab *Slab) {
	if a.void {
		panic("pool: slab for an arena that is deregistered")
	}
	poison(slab.Bytes())
	s := &arenaSlab{Slab: slab, buddy: newBuddy(len(slab.Bytes()) / MinBlock)}
	a.slabs = append(a.slabs, s)
	a.mapped += s.size()
}

// carve takes a block out of s. It returns nil if none fits.
func (a *Arena) carve(s *arenaSlab, size int) *Block {
	block, ok := s.buddy.alloc(size / MinBlock)
	if !ok {
		return nil
	}
	at := block * MinBlock
	b := &Block{Bytes: s.Bytes()[at : at+size : at+size], Shared: s.Shared(), Offset: uint64(at), arena: a, slab: s, block: block}
	if region := s.Region(); region != nil {
		b.Desc, b.Addr, b.Key = region.Desc(), region.Base()+uint64(at), region.Key()
	}
	unpoison(b.Bytes)
	a.blocks++
	a.bytes += int64(size)
	return b
}

// Free takes a block back. The key stays valid, so it is the rules of the protocol
// that must forbid anybody to write to the block any more. Free panics if b is
// already free.
func (a *Arena) Free(b *Block) {
	if b.arena != a {
		panic("pool: block freed twice, or not from this arena")
	}
	b.arena = nil
	b.slab.buddy.free(b.block, len(b.Bytes)/MinBlock)
	if !a.void {
		poison(b.Bytes)
	}
	a.blocks--
	a.bytes -= int64(len(b.Bytes))
}

// Trim gives up all slabs without blocks, except for the first keep of them. The
// caller has to close them, which takes long. After Void it gives up none, since
// nobody knows what is in flight towards them.
func (a *Arena) Trim(keep int) (empty []*Slab) {
	if a.void {
		return nil
	}
	a.drop(func(s *arenaSlab) bool {
		if !s.buddy.empty() {
			return false
		}
		if keep > 0 {
			keep--
			return false
		}
		empty = append(empty, s.Slab)
		return true
	})
	return empty
}

// Void stops memory from being handed out, and from being given up by Trim: the peer is
// gone, and what it has begun may still end there.
func (a *Arena) Void() {
	if a.void {
		return
	}
	a.void = true
	for _, s := range a.slabs {
		s.late = !s.buddy.empty()
		unpoison(s.Bytes())
	}
}

// Deregister voids the peer's keys and keeps the memory. It is for when the peer is
// gone; no block can be allocated afterwards. If some registration could not be
// withdrawn, Deregister may be tried again.
func (a *Arena) Deregister() error {
	a.Void()
	var err error
	for _, s := range a.slabs {
		err = errors.Join(err, s.Deregister())
	}
	return err
}

// Retire gives the memory up after Deregister, when nobody reads it any more. Slabs that
// had blocks in use when Void was called keep their addresses until Close: see
// Slab.Retire. The rest is unmapped, since the peer had given back all it had of those
// slabs. If that fails for a slab, Retire may be tried again.
func (a *Arena) Retire() error {
	var err error
	a.drop(func(s *arenaSlab) bool {
		end := s.Close
		if s.late {
			end = s.Retire
		}
		e := end()
		err = errors.Join(err, e)
		return e == nil && !s.late
	})
	return err
}

// Close deregisters and unmaps everything, including the memory of blocks still in
// use: nothing may touch them any more. If that fails for a slab, the error says why
// and Close may be tried again.
func (a *Arena) Close() error {
	a.void = true
	var err error
	a.drop(func(s *arenaSlab) bool {
		e := s.Close()
		err = errors.Join(err, e)
		return e == nil
	})
	return err
}

// Stats returns a snapshot.
func (a *Arena) Stats() ArenaStats {
	return ArenaStats{
		Slabs:  len(a.slabs),
		Mapped: a.mapped,
		Blocks: a.blocks,
		InUse:  a.bytes,
	}
}
