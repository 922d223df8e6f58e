package pool

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
)

// MinBlock is the size of the smallest block in bytes: a page on most machines.
const MinBlock = 4 << 10

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
	mark      *Mark // see Share
	void      bool  // Void, Deregister or Close was called
	slabs     []*arenaSlab
	blocks    int
	bytes     int64
}

type arenaSlab struct {
	*Slab
	buddy buddy
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
func (a *Arena) Share(mark Mark) { a.mark = &mark }

// Get takes a block of at least size bytes, MinBlock or the next power of two, from the slabs that are there. It
// returns nil if none has room.
func (a *Arena) Get(size int) *Block {
	if a.void || size <= 0 || size > a.slabSize {
		return nil
	}
	size = max(MinBlock, 1<<bits.Len(uint(size-1)))
	for _, s := range a.slabs {
		first, ok := s.buddy.alloc(size / MinBlock)
		if !ok {
			continue
		}
		at := first * MinBlock
		b := &Block{Bytes: s.mem[at : at+size : at+size], Shared: s.shared, Offset: uint64(at), arena: a, slab: s}
		if r := s.region; r != nil {
			b.Desc, b.Addr, b.Key = r.Desc(), r.Base()+uint64(at), r.Key()
		}
		unpoison(b.Bytes)
		a.blocks++
		a.bytes += int64(size)
		return b
	}
	return nil
}

// Map makes a slab of size bytes for Add: a power of two of at least MinBlock, and at most
// the arena's slab size. It takes long, and may be called while others use the arena.
func (a *Arena) Map(size int) (*Slab, error) {
	if size < MinBlock || size > a.slabSize || size&(size-1) != 0 {
		return nil, fmt.Errorf("%w: slab of %d bytes in an arena of %d", errSize, size, a.slabSize)
	}
	return newSlab(a.budget, a.registrar, size, a.access, a.mark)
}

// Add adds a slab that Map has made, or that Trim has given up.
func (a *Arena) Add(slab *Slab) {
	if a.void {
		panic("pool: slab for an arena that is deregistered")
	}
	poison(slab.Bytes())
	a.slabs = append(a.slabs, &arenaSlab{Slab: slab, buddy: newBuddy(len(slab.Bytes()) / MinBlock)})
}

// Free takes a block back. The key stays valid, so it is the rules of the protocol
// that must forbid anybody to write to the block any more. Free panics if b is
// already free.
func (a *Arena) Free(b *Block) {
	if b.arena != a {
		panic("pool: block freed twice, or not from this arena")
	}
	b.arena = nil
	b.slab.buddy.free(int(b.Offset)/MinBlock, len(b.Bytes)/MinBlock)
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
	a.slabs = slices.DeleteFunc(a.slabs, func(s *arenaSlab) bool {
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
	a.void = true
	for _, s := range a.slabs {
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

// Retire gives the memory up after Deregister, when nobody reads it any more, except for its addresses: see
// Slab.Retire. If that fails for a slab, Retire may be tried again.
func (a *Arena) Retire() error {
	var err error
	for _, s := range a.slabs {
		err = errors.Join(err, s.Retire())
	}
	return err
}

// Close deregisters and unmaps everything, including the memory of blocks still in
// use: nothing may touch them any more. If that fails for a slab, the error says why
// and Close may be tried again.
func (a *Arena) Close() error {
	a.void = true
	var err error
	a.slabs = slices.DeleteFunc(a.slabs, func(s *arenaSlab) bool {
		e := s.Close()
		err = errors.Join(err, e)
		return e == nil
	})
	return err
}

// Stats returns a snapshot.
func (a *Arena) Stats() ArenaStats {
	stats := ArenaStats{Slabs: len(a.slabs), Blocks: a.blocks, InUse: a.bytes}
	for _, s := range a.slabs {
		stats.Mapped += int64(len(s.Bytes()))
	}
	return stats
}
