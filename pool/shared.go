package pool

import (
	"errors"
	"fmt"
	"os"
)

// Shared memory. A slab that Share was called for is a file without a name (memfd_create(2))
// which another process of the same user can map, too: what it writes there needs no fabric.
// The owner pays for it, and can take the pages back at any time, whoever has it mapped:
// a late writer gets pages of its own then, which nobody reads. The file is sealed, so that
// neither side can make it shorter and have the other die by SIGBUS (fcntl(2)). What is left of
// that is a machine without any memory for a late writer's pages.

// SharedName is how another process finds a shared slab: by the number of the owner's file
// descriptor (proc(5): /proc/pid/fd), which may mean something else by then, and the number
// of the inode, which does not as long as anybody has the slab mapped.
type SharedName struct {
	FD    uint32
	Inode uint64 // 0: the slab is not shared
}

// MaxShared is the largest slab that OpenSlab maps, in bytes: all of it is faulted in.
const MaxShared = 8 << 20

// errNotShared: the system does not let memory be shared.
var errNotShared = errors.New("pool: no shared memory")

// newSharedSlab is NewSlab of memory that another process can map. It fails with
// errNotShared where there is none.
func newSharedSlab(b *Budget, r Registrar, size int, access Access) (*Slab, error) {
	return newSlab(b, r, size, access, mapShared)
}

// maxForeign is how many slabs of others' may be mapped at a time: the kernel has an end to
// mappings (vm.max_map_count), and a Go program ends with it.
const maxForeign = 4096

// OpenSlab maps the slab that a process calls by that name. proc is its directory in /proc.
// Its owner pays for it; b counts it apart, see BudgetStats.Foreign, and has no more of these
// than its limit. Whatever the name, only a sealed file of this user's is mapped.
func OpenSlab(b *Budget, proc *os.File, n SharedName) (*Slab, error) {
	path, size, err := findShared(proc, n)
	if err != nil {
		return nil, fmt.Errorf("pool: a peer's memory: %w", err)
	}
	defer path.Close()
	if err := b.reserveForeign(int64(size)); err != nil {
		return nil, err
	}
	mem, err := openShared(path, size)
	if err != nil {
		b.releaseForeign(int64(size))
		return nil, fmt.Errorf("pool: mapping %d bytes of a peer's: %w", size, err)
	}
	return &Slab{budget: b, mem: mem, state: foreign}, nil
}

// Foreign reports that the slab is another process's: see OpenSlab. No fabric has to do with it.
func (s *Slab) Foreign() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == foreign
}

// Shared is how another process finds the slab, zero if it cannot.
func (s *Slab) Shared() SharedName {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shared
}
