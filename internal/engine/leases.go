package engine

import (
	"fmt"

	"github.com/seed202c38ff/fabricnet/pool"
)

// maxLeases is how many leases there can be: the peer names a lease by 15 bits.
const maxLeases = 1 << 15

// leaseState is how far a lease has come.
type leaseState uint8

// The states, in the order in which a lease goes through them. leaseRevoking may be
// skipped: the end of a stream, for one, returns a lease that was not asked for.
const (
	leaseGranted  leaseState = iota // the peer may write
	leaseRevoking                   // the peer was asked to stop, but may still write
	leaseReturned                   // the peer has said that its last write has completed
	leaseDropped                    // the index and the ring are free
)

// lease is a peer's right to write to a landing ring. The ring is not used for anything else until
// the peer has given that right back and everything it wrote has been read.
type lease struct {
	Index  uint16 // names the lease to the peer; less than maxLeases
	Ring   *pool.Block
	stream *stream
	base   uint64 // ring position at which the lease began
	final  uint64 // leaseReturned: the one at which it ended, as the peer says
	state  leaseState
}

// released is the ring position before which the peer may overwrite everything.
func (l *lease) released() uint64 { return max(l.base, l.stream.largeRel) }

// drained reports whether the peer has returned the lease and everything it wrote has been released.
func (l *lease) drained() bool { return l.state == leaseReturned && l.released() >= l.final }

// endAt notes that the peer writes no more, and that final is the ring position at which it has ended. What
// the peer says is checked as far as possible.
func (l *lease) endAt(final uint64) error {
	released, size := l.released(), uint64(len(l.Ring.Bytes))
	if l.state == leaseReturned && final != l.final || final < released || final-released > size {
		return fmt.Errorf("%w: invalid return of a lease: %d ends at %d, released up to %d of a ring of %d",
			errProtocol, l.Index, final, released, size)
	}
	l.state, l.final = leaseReturned, final
	return nil
}

// leases is the table of the leases of an endpoint.
type leases struct {
	table []lessee
	free  []uint16 // first in, first out
}

// lessee is the peer to which an index was last granted, until that is granted to another: the slot that a
// write has taken is free again, whatever has become of the lease.
type lessee struct {
	peer  uint32   // its id: of a peer that has gone, nothing is kept
	lease *inLease // nil once it is dropped
}

// grant gives a lease its index. It reports false if maxLeases are out. Indices are reused as late as
// possible, so that a late completion, which carries no more than an index, is unlikely to meet a lease
// other than its own.
func (t *leases) grant(l *inLease) bool {
	switch {
	case len(t.table) < maxLeases:
		l.Index = uint16(len(t.table))
		t.table = append(t.table, lessee{})
	case len(t.free) > 0:
		l.Index = t.free[0]
		t.free = t.free[1:]
	default:
		return false
	}
	t.table[l.Index] = lessee{l.stream.p.id, l}
	return true
}

// named returns who has, or had, the lease with the index that a peer named.
func (t *leases) named(index uint16) (l lessee) {
	if int(index) < len(t.table) {
		l = t.table[index]
	}
	return l
}

// drop frees the index and the ring. The peer has returned the lease, or it is known by other means that it
// cannot write any more: the stream has ended on both sides, or the landing memory has been deregistered.
func (t *leases) drop(l *inLease) {
	l.state = leaseDropped
	t.table[l.Index].lease = nil
	t.free = append(t.free, l.Index)
	l.stream.p.landing.Free(l.Ring)
}

// out is how many leases are not dropped.
func (t *leases) out() int { return len(t.table) - len(t.free) }
