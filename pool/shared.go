package pool

import (
	"errors"
	"fmt"
	"os"
)

// Shared memory. A slab of an arena for which Share was called is a file without a name
// (memfd_create(2)), which another process of the same user can map too: what that process
// writes there needs no fabric. The owner pays for the file, and can take the pages back at any
// time, whoever has it mapped: a late writer then gets pages of its own, which nobody reads. The
// file is sealed (fcntl(2)), so that neither side can shorten it and thereby kill the other by
// SIGBUS. The case that remains is a machine without any memory for a late writer's pages.
//
// The memory begins at the file's second page. The first one begins with a mark that the owner
// shares with one peer only. So a peer can name any file of any process, this one included, and
// nothing is mapped but what was made for it by the process that gave the mark.

// Mark tells the memory that an owner shares with one peer from all other files.
type Mark [16]byte

// SharedName is how another process finds a shared slab: by the number of the owner's file
// descriptor (proc(5): /proc/pid/fd), which may have come to mean something else by then, by the
// number of the inode, which cannot as long as any process has the slab mapped, and by the mark.
type SharedName struct {
	FD    uint32
	Inode uint64 // 0: the slab is not shared
	Mark  Mark
}

// MaxShared is the size of the largest slab that OpenSlab maps, in bytes. It is limited because
// OpenSlab faults all of a slab in.
const MaxShared = 8 << 20

// errNotShared: the system does not allow memory to be shared: see memfd_create(2).
var errNotShared = errors.New("pool: no shared memory")

// maxForeign is how many slabs of other processes may be mapped at a time: the kernel limits the
// number of mappings (vm.max_map_count), and a Go program that reaches the limit ends.
const maxForeign = 4096

// OpenSlab maps the slab to which another process has given the name n. proc is the directory
// of that process in /proc. The owner pays for the slab; b counts it separately, as
// BudgetStats.Foreign, and allows no more of these bytes than its limit. Whatever the name,
// OpenSlab maps only a sealed file that belongs to this process's user and begins with n's mark.
func OpenSlab(b *Budget, proc *os.File, n SharedName) (*Slab, error) {
	path, size, err := findShared(proc, n)
	if err != nil {
		return nil, fmt.Errorf("pool: a peer's memory: %w", err)
	}
	defer path.Close()
	if err := b.reserveForeign(int64(size)); err != nil {
		return nil, err
	}
	mem, err := openShared(path, size, n.Mark)
	if err != nil {
		b.releaseForeign(int64(size))
		return nil, fmt.Errorf("pool: mapping %d bytes of a peer's: %w", size, err)
	}
	return &Slab{budget: b, mem: mem, state: foreign}, nil
}

// Foreign reports whether the slab belongs to another process: see OpenSlab. No fabric is
// involved with such a slab.
func (s *Slab) Foreign() bool { return s.state == foreign }

// Shared returns how another process finds the slab, zero if it cannot.
func (s *Slab) Shared() SharedName { return s.shared }
