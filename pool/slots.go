package pool

import (
	"errors"
	"fmt"
	"math"
)

// Slots is a growing set of slots of local memory, all of the same size and numbered
// from 0. They are receive buffers, send buffers, staging chunks or, without a
// Registrar, memory that no fabric touches. Slots is not safe for concurrent use,
// except for Map.
type Slots struct {
	budget    *Budget
	registrar Registrar
	size      int
	slabs     []*Slab
	slots     []slot
	free      []uint32 // last in, first out: the warmest slot is used next
}

type slot struct {
	mem  []byte
	desc uintptr
	held bool
}

// NewSlots returns an empty set of slots of size bytes each. The slabs that Map and
// Grow make count against b and are registered with r, each as one region for local
// use, unless r is nil. size must be positive.
func NewSlots(b *Budget, r Registrar, size int) *Slots {
	if size <= 0 {
		panic("pool: slot size must be positive")
	}
	return &Slots{budget: b, registrar: r, size: size}
}

// Grow adds n free slots, in one slab. n must be positive.
func (s *Slots) Grow(n int) error {
	slab, err := s.Map(n)
	if err == nil {
		s.Add(slab, n)
	}
	return err
}

func (s *Slots) stride() int { return (s.size + Align - 1) &^ (Align - 1) }

// Map makes a slab of n slots for Add. It takes long, and may be called while the
// slots are being used.
func (s *Slots) Map(n int) (*Slab, error) {
	stride := s.stride()
	if n <= 0 || stride < s.size || n > math.MaxInt/stride {
		return nil, fmt.Errorf("%w: %d slots of %d bytes", errSize, n, s.size)
	}
	return NewSlab(s.budget, s.registrar, n*stride, AccessLocal)
}

// Add adds n free slots, in a slab that Map has made for n slots or more.
func (s *Slots) Add(slab *Slab, n int) {
	var desc uintptr
	if r := slab.Region(); r != nil {
		desc = r.Desc()
	}
	s.slabs = append(s.slabs, slab)
	first, mem, stride := len(s.slots), slab.Bytes(), s.stride()
	poison(mem)
	for i := range n {
		at := i * stride
		s.slots = append(s.slots, slot{mem: mem[at : at+s.size : at+s.size], desc: desc})
	}
	for i := first + n - 1; i >= first; i-- { // the lowest is taken first
		s.free = append(s.free, uint32(i))
	}
}

// Get takes the free slot that was put back last. It reports false if no slot
// is free.
func (s *Slots) Get() (slot uint32, ok bool) {
	last := len(s.free) - 1
	if last < 0 {
		return 0, false
	}
	slot = s.free[last]
	s.free = s.free[:last]
	s.slots[slot].held = true
	unpoison(s.slots[slot].mem)
	return slot, true
}

// Put frees a slot that Get returned. It panics if the slot is free already.
func (s *Slots) Put(slot uint32) {
	if !s.slots[slot].held {
		panic(fmt.Sprintf("pool: slot %d put back twice", slot))
	}
	s.slots[slot].held = false
	poison(s.slots[slot].mem)
	s.free = append(s.free, slot)
}

// Bytes returns the memory of a slot, which is aligned to Align.
func (s *Slots) Bytes(slot uint32) []byte { return s.slots[slot].mem }

// Desc returns the local descriptor of a slot's memory, 0 without a Registrar.
func (s *Slots) Desc(slot uint32) uintptr { return s.slots[slot].desc }

// Len returns the number of slots.
func (s *Slots) Len() int { return len(s.slots) }

// Free returns the number of free slots.
func (s *Slots) Free() int { return len(s.free) }

// Trim gives up all memory if no slot is held. The caller has to close it, which takes
// long. Afterwards there are no slots until some are added.
func (s *Slots) Trim() []*Slab {
	if len(s.free) < len(s.slots) {
		return nil
	}
	slabs := s.slabs
	s.slabs, s.slots, s.free = nil, nil, nil
	return slabs
}

// Deregister withdraws the registrations and keeps the memory, for slots that are
// still being read when the fabric is done with them. If some registration could not
// be withdrawn, Deregister may be tried again.
func (s *Slots) Deregister() error {
	var err error
	for _, slab := range s.slabs {
		err = errors.Join(err, slab.Deregister())
	}
	return err
}

// Close gives all memory back, including that of slots still held: nothing may touch
// it any more. If a slab cannot be given back, the error says why and Close may be
// tried again. In either case there are no slots afterwards.
func (s *Slots) Close() error {
	s.slots, s.free = nil, nil
	var err error
	s.slabs, err = CloseSlabs(s.slabs)
	return err
}

// CloseSlabs closes the slabs that it can close and returns the rest.
func CloseSlabs(slabs []*Slab) (left []*Slab, err error) {
	for _, slab := range slabs {
		if e := slab.Close(); e != nil {
			left = append(left, slab)
			err = errors.Join(err, e)
		}
	}
	return left, err
}
