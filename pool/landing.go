package pool

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
)

// MinRing is the size of the smallest landing ring in bytes: 64 KiB.
const MinRing = 64 << 10

// ErrDeregistered is the error of Alloc once Deregister has been called.
var ErrDeregistered = errors.New("pool: landing memory is deregistered")

// Landing is the memory that one peer may write to. Each peer has its own
// slabs and registrations, so that the keys one peer holds open nothing of
// another's and can be voided when it goes. It is not safe for concurrent use.
type Landing struct {
	budget    *Budget
	registrar Registrar
	slabSize  int
	void      bool // Deregister was called
	slabs     []*landingSlab
	rings     int
	bytes     int64
}

type landingSlab struct {
	*Slab
	buddy buddy
}

// Ring is a piece of landing memory. Its fields are not to be changed.
type Ring struct {
	Bytes []byte // aligned to Align; the length is a power of two
	Addr  uint64 // of the first byte, as the peer must name it
	Key   uint64 // of the region it lies in

	landing *Landing // nil once free
	slab    *landingSlab
	block   int
}

// LandingStats is a snapshot of a Landing.
type LandingStats struct {
	Slabs  int
	Mapped int64 // bytes in the slabs
	Rings  int
	InUse  int64 // bytes in the rings
}

// NewLanding returns landing memory without any slab yet. Slabs are of slabSize
// bytes, a power of two of at least MinRing; they count against b and are
// registered with r for remote writes.
func NewLanding(b *Budget, r Registrar, slabSize int) *Landing {
	if slabSize < MinRing || slabSize&(slabSize-1) != 0 {
		panic("pool: slab size must be a power of two of at least MinRing")
	}
	return &Landing{budget: b, registrar: r, slabSize: slabSize}
}

// Alloc returns a ring of at least size bytes: MinRing or the next power of
// two, at most the slab size. It may have to map and register a slab, which
// takes long, and fails with ErrBudget if the budget has no room for one.
func (l *Landing) Alloc(size int) (*Ring, error) {
	if l.void {
		return nil, ErrDeregistered
	}
	if size <= 0 || size > l.slabSize {
		return nil, fmt.Errorf("%w: ring of %d bytes in slabs of %d", errSize, size, l.slabSize)
	}
	size = max(MinRing, 1<<bits.Len(uint(size-1)))
	for _, s := range l.slabs {
		if r := l.carve(s, size); r != nil {
			return r, nil
		}
	}
	slab, err := NewSlab(l.budget, l.registrar, l.slabSize, AccessRemoteWrite)
	if err != nil {
		return nil, err
	}
	s := &landingSlab{Slab: slab, buddy: newBuddy(l.slabSize / MinRing)}
	l.slabs = append(l.slabs, s)
	return l.carve(s, size), nil
}

// carve takes a ring out of s, nil if none fits.
func (l *Landing) carve(s *landingSlab, size int) *Ring {
	block, ok := s.buddy.alloc(size / MinRing)
	if !ok {
		return nil
	}
	at := block * MinRing
	r := &Ring{Bytes: s.Bytes()[at : at+size : at+size], landing: l, slab: s, block: block}
	if region := s.Region(); region != nil {
		r.Addr, r.Key = region.Base()+uint64(at), region.Key()
	}
	l.rings++
	l.bytes += int64(size)
	return r
}

// Free takes a ring back. The peer must not be able to write to it any more by
// the rules of the protocol, for the key stays valid. One slab without rings is
// kept for the next Alloc, others are given back to the budget. Free panics if
// r is free.
func (l *Landing) Free(r *Ring) {
	if r.landing != l {
		panic("pool: ring freed twice, or not from this landing memory")
	}
	r.landing = nil
	r.slab.buddy.free(r.block, len(r.Bytes)/MinRing)
	l.rings--
	l.bytes -= int64(len(r.Bytes))
	l.trim(1)
}

// Trim gives all slabs without rings back to the budget.
func (l *Landing) Trim() { l.trim(0) }

// trim keeps the first keep of the slabs without rings. After Deregister all
// are kept: what is in flight towards them is not known.
func (l *Landing) trim(keep int) {
	if l.void {
		return
	}
	l.slabs = slices.DeleteFunc(l.slabs, func(s *landingSlab) bool {
		if !s.buddy.empty() {
			return false
		}
		if keep > 0 {
			keep--
			return false
		}
		// A slab that cannot be deregistered stays: it is as good as before,
		// and will be tried again.
		return s.Close() == nil
	})
}

// Deregister voids the peer's keys and keeps the memory, to be called when the
// peer is gone; no ring can be allocated afterwards. If some registration could
// not be withdrawn, Deregister may be tried again.
func (l *Landing) Deregister() error {
	l.void = true
	var err error
	for _, s := range l.slabs {
		err = errors.Join(err, s.Deregister())
	}
	return err
}

// Close deregisters and unmaps everything, that of rings still in use
// included: nothing may touch them any more. If that fails for a slab, the
// error says why and Close may be tried again.
func (l *Landing) Close() error {
	l.void = true
	var err error
	l.slabs = slices.DeleteFunc(l.slabs, func(s *landingSlab) bool {
		e := s.Close()
		err = errors.Join(err, e)
		return e == nil
	})
	return err
}

// Stats returns a snapshot.
func (l *Landing) Stats() LandingStats {
	return LandingStats{
		Slabs:  len(l.slabs),
		Mapped: int64(len(l.slabs)) * int64(l.slabSize),
		Rings:  l.rings,
		InUse:  l.bytes,
	}
}
