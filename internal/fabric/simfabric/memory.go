package simfabric

import (
	"fmt"
	"runtime/debug"
	"slices"
	"sync/atomic"
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
	closed bool
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
	call := CallRegisterLocal
	if access == pool.AccessRemoteWrite {
		call = CallRegisterRemote
	}
	if err := e.fault(call); err != nil {
		return nil, err
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
	if r.closed {
		return fmt.Errorf("%w: region is closed", ErrInvalid)
	}
	if err := r.owner.faultOf(CallCloseRegion, fabric.Op{Key: r.key}, nil); err != nil {
		return err
	}
	if op := r.inUse(); op != nil {
		n.misused("region of %d bytes closed under operation %d of kind %d", len(r.mem), op.Tag, op.Kind)
	}
	r.closed = true
	delete(r.owner.regions, r.key)
	n.stats.Regions--
	return nil
}

// inUse returns an operation on the region's memory that its owner must still take for unfinished,
// nil if there is none. An endpoint that was shut down has none. If regions have to be closed
// before the endpoint, the operations may outlive the region, but not the mapping of the memory:
// see Close.
func (r *region) inUse() *fabric.Op {
	e := r.owner
	if e.death != 0 || e.p.EndpointMR {
		return nil
	}
	ops := e.inFlight()
	i := slices.IndexFunc(ops, func(op fabric.Op) bool { return len(op.Buf) > 0 && r.contains(op.Buf) })
	if i < 0 {
		return nil
	}
	return &ops[i]
}

// inFlight lists the operations that the endpoint's owner must still take for unfinished.
func (e *endpoint) inFlight() []fabric.Op {
	ops := slices.Concat(e.recvs, e.lost)
	for _, q := range e.queue {
		ops = append(ops, fabric.Op{Kind: q.Kind, Tag: q.Tag, Buf: q.buf})
	}
	for _, f := range e.net.flows {
		for _, x := range f.items {
			if f.src == e && !x.reported && x.op.Kind != fabric.Inject {
				ops = append(ops, x.op)
			}
		}
	}
	return ops
}

// touch reports whether the memory is still mapped.
func touch(mem []byte) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { ok = recover() == nil }()
	var sum byte
	for i := 0; i < len(mem); i += pool.MinBlock {
		sum += mem[i]
	}
	if len(mem) > 0 {
		sum += mem[len(mem)-1]
	}
	touched.Store(uint32(sum))
	return true
}

// move copies as a device would. Memory that is unmapped meanwhile is noted as misuse, but is no
// reason to end the process.
func (n *Network) move(to, from []byte) (moved int) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			n.misused("memory unmapped while in use")
		}
	}()
	return copy(to, from)
}

var touched atomic.Uint32 // keeps the loop in touch from being optimised away

func address(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }

// owns reports whether the operation's buffer lies in the region that its descriptor names. It is
// true if the personality does not demand that.
func (e *endpoint) owns(op fabric.Op) bool {
	if !e.p.LocalMR || len(op.Buf) == 0 {
		return true
	}
	for _, r := range e.regions {
		if r.desc == op.Desc {
			return r.contains(op.Buf)
		}
	}
	return false
}

// registered reports whether the memory lies in some region of the endpoint.
func (e *endpoint) registered(mem []byte) bool {
	for _, r := range e.regions {
		if r.contains(mem) {
			return true
		}
	}
	return len(mem) == 0
}

func (r *region) contains(mem []byte) bool {
	at := address(mem) - address(r.mem)
	return at <= uintptr(len(r.mem)) && uintptr(len(mem)) <= uintptr(len(r.mem))-at
}

// reach returns the memory that a peer's write of size bytes goes to, with its region, both nil if
// access is denied.
func (e *endpoint) reach(key, remote uint64, size int) (*region, []byte) {
	r := e.regions[key]
	if r == nil || r.access != pool.AccessRemoteWrite {
		return nil, nil
	}
	at := remote - r.base
	if at > uint64(len(r.mem)) || uint64(size) > uint64(len(r.mem))-at {
		return nil, nil
	}
	return r, r.mem[at : at+uint64(size)]
}

// Unmapping implements pool.Unmapper: whatever is written there later is dropped, even if something
// else is mapped there by then.
func (e *endpoint) Unmapping(mem []byte) {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	gone := region{mem: mem}
	for _, f := range e.net.flows {
		for _, x := range f.items {
			if f.dst == e && x.target != nil && x.region.closed && gone.contains(x.target) {
				x.target = nil
			}
		}
	}
}

// found returns what a write meets at mem, which was part of the region when the write began.
func (n *Network) found(r *region, mem []byte) Place {
	if !r.closed {
		return Registered
	}
	n.stats.LateWrites++
	if mem == nil || !touch(mem) {
		n.stats.LateUnmapped++
		return Unmapped
	}
	for _, e := range n.endpoints {
		for _, other := range e.regions {
			if other.overlaps(mem) {
				n.stats.LateReused++
				return Reused
			}
		}
	}
	return Kept
}

func (r *region) overlaps(mem []byte) bool {
	a, b := address(r.mem), address(mem)
	return a < b+uintptr(len(mem)) && b < a+uintptr(len(r.mem))
}
