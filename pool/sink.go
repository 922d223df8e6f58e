package pool

import (
	"errors"
	"sync"
)

// sinkSize is what a sink takes of its budget, in bytes: as much as the slabs that it
// replaces usually have at most, so that one mapping replaces each (vm.max_map_count).
const sinkSize = 2 << 20

// sink is the memory behind the retired slabs of a budget (see Slab.Retire): one piece
// that lies at the addresses of all of them. Whatever is still written there, by however
// many peers, takes no more than sinkSize, and nobody ever reads it. The sink exists
// while there are retired slabs.
type sink struct {
	mu    sync.Mutex // guards what follows
	mem   []byte     // nil if there is none
	slabs int        // number of slabs that it lies behind
}

// replace puts the sink behind mem, which is charged to b, and gives that charge back. If
// mem is the first, the sink's own size remains charged. On error, mem is still charged.
func (s *sink) replace(b *Budget, mem []byte) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	charge := int64(0)
	if s.mem == nil {
		charge = sinkSize
		if s.mem, err = newSink(sinkSize); err != nil {
			return err
		}
	}
	if err = mapSink(s.mem, mem); err == nil {
		err = b.exchange(int64(len(mem)), charge)
	}
	switch {
	case err == nil:
		b.mapped.Add(charge - int64(len(mem)))
		s.slabs++
	case charge > 0:
		err = errors.Join(err, s.unmap())
	}
	return err
}

// leave notes that a slab behind which the sink lay has been unmapped.
func (s *sink) leave(b *Budget) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slabs--; s.slabs > 0 {
		return nil
	}
	b.mapped.Add(-sinkSize)
	b.Release(sinkSize)
	return s.unmap()
}

func (s *sink) unmap() error {
	mem := s.mem
	s.mem = nil
	return unmapMemory(mem)
}
