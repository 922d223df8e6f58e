package simfabric

import (
	"fmt"
	"unsafe"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// region is registered memory.
type region struct {
	owner  *endpoint
	mem    []byte
	access pool.Access
	key    uint64
	desc   uintptr
	base   uint64
}

func (e *endpoint) Register(mem []byte, access pool.Access) (pool.Region, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("%w: empty region", ErrInvalid)
	}
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	if e.closed {
		return nil, ErrClosed
	}
	e.lastKey++
	r := &region{owner: e, mem: mem, access: access, key: e.lastKey<<32 | uint64(e.net.rng.Uint32())}
	if e.p.LocalMR {
		r.desc = uintptr(e.lastKey)
	}
	if e.p.VirtAddr {
		r.base = uint64(address(mem))
	}
	e.regions[r.key] = r
	e.net.stats.Regions++
	return r, nil
}

func (r *region) Desc() uintptr { return r.desc }
func (r *region) Key() uint64   { return r.key }
func (r *region) Base() uint64  { return r.base }

func (r *region) Close() error {
	n := r.owner.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if r.owner.regions[r.key] != r {
		return fmt.Errorf("%w: region is closed", ErrInvalid)
	}
	delete(r.owner.regions, r.key)
	n.stats.Regions--
	return nil
}

func address(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }

// owns reports that the operation's buffer lies in the region that its
// descriptor names, where that is demanded.
func (e *endpoint) owns(op fabric.Op) bool {
	if !e.p.LocalMR || len(op.Buf) == 0 {
		return true
	}
	for _, r := range e.regions {
		if r.desc == op.Desc {
			at := address(op.Buf) - address(r.mem)
			return at <= uintptr(len(r.mem)) && uintptr(len(op.Buf)) <= uintptr(len(r.mem))-at
		}
	}
	return false
}

// reach is the memory that a peer's write of size bytes goes to, nil if it is
// denied.
func (e *endpoint) reach(key, remote uint64, size int) []byte {
	r := e.regions[key]
	if r == nil || r.access != pool.AccessRemoteWrite {
		return nil
	}
	at := remote - r.base
	if at > uint64(len(r.mem)) || uint64(size) > uint64(len(r.mem))-at {
		return nil
	}
	return r.mem[at : at+uint64(size)]
}
