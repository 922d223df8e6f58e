package pool

import (
	"errors"
	"fmt"
)

// MaxLeases is how many leases a table holds: the peer names a lease by 15 bits, whose
// highest values are kept for the memory of path checks.
const MaxLeases = 1<<15 - 1<<10

// Errors of leases.
var (
	// ErrLeases: MaxLeases are out.
	ErrLeases = errors.New("pool: no lease index is free")
	// ErrReturn: the peer gave back a lease in a way that is not possible.
	ErrReturn = errors.New("pool: invalid return of a lease")
)

// LeaseState is how far a lease has come.
type LeaseState uint8

// The states, in the order in which a lease goes through them. LeaseRevoking may be
// skipped: the end of a stream, for one, returns a lease that was not asked for.
const (
	LeaseGranted  LeaseState = iota // the peer may write
	LeaseRevoking                   // the peer was asked to stop, but may still write
	LeaseReturned                   // the peer has said that its last write has completed
	LeaseDropped                    // the index and the ring are free
)

// Lease is a peer's right to write to a landing ring. The ring is not used for
// anything else until the peer has given that right back and everything it wrote
// has been read. A Lease is not safe for concurrent use.
type Lease struct {
	Index uint16 // names the lease to the peer; less than MaxLeases
	Ring  *Block
	Owner any // whatever the caller likes

	state    LeaseState
	released uint64
	final    uint64
}

// State returns how far the lease has come.
func (l *Lease) State() LeaseState { return l.state }

// Revoke notes that the peer has been asked to return the lease. It does nothing and
// reports false if the peer has been asked before or has returned the lease.
func (l *Lease) Revoke() bool {
	if l.state != LeaseGranted {
		return false
	}
	l.state = LeaseRevoking
	return true
}

// Return notes that the peer will write no more and has written final bytes since
// the lease began. What the peer says is checked as far as possible: Return fails,
// with an error that wraps ErrReturn, if final is less than has been released, more
// than has been granted, or not what an earlier Return said.
func (l *Lease) Return(final uint64) error {
	switch {
	case l.state == LeaseDropped || l.state == LeaseReturned && final != l.final:
		return fmt.Errorf("%w: lease %d is not out", ErrReturn, l.Index)
	case final < l.released || final-l.released > uint64(len(l.Ring.Bytes)):
		return fmt.Errorf("%w: lease %d ends at %d, released up to %d of a ring of %d",
			ErrReturn, l.Index, final, l.released, len(l.Ring.Bytes))
	}
	l.state, l.final = LeaseReturned, final
	return nil
}

// Release lets the peer overwrite everything before ring position pos, counted from
// the start of the lease without wrapping. Positions never go back, nor past the end
// that the peer has named: a pos outside these bounds is moved to the nearest one.
func (l *Lease) Release(pos uint64) {
	if l.state == LeaseReturned {
		pos = min(pos, l.final)
	}
	l.released = max(l.released, pos)
}

// Ends reports whether the peer has returned the lease, and its end is at ring position pos.
func (l *Lease) Ends(pos uint64) bool { return l.state == LeaseReturned && l.final == pos }

// Drained reports whether the peer has returned the lease and everything it wrote
// has been released.
func (l *Lease) Drained() bool { return l.state == LeaseReturned && l.released == l.final }

// Leases is the table of the leases of one endpoint, which may have been granted to
// many peers. The zero value is an empty table. Leases is not safe for concurrent use.
type Leases struct {
	table []*Lease
	free  []uint16 // first in, first out
	stats LeaseStats
}

// LeaseStats is a snapshot of a table of leases.
type LeaseStats struct {
	Out     int    // leases that are not dropped
	Granted uint64 // leases granted in total
	Forced  uint64 // of these, leases dropped before they were drained
}

// Grant enters a lease on ring. Indices are reused as late as possible, so that a
// late completion, which carries no more than an index, is unlikely to meet a lease
// other than its own.
func (t *Leases) Grant(ring *Block, owner any) (*Lease, error) {
	l := &Lease{Ring: ring, Owner: owner}
	switch {
	case len(t.table) < MaxLeases:
		l.Index = uint16(len(t.table))
		t.table = append(t.table, l)
	case len(t.free) > 0:
		l.Index = t.free[0]
		t.free = t.free[1:]
		t.table[l.Index] = l
	default:
		return nil, ErrLeases
	}
	t.stats.Out++
	t.stats.Granted++
	return l, nil
}

// Lookup returns the lease with the index that the peer named, nil if there is none.
func (t *Leases) Lookup(index uint16) *Lease {
	if int(index) >= len(t.table) {
		return nil
	}
	return t.table[index]
}

// Drop takes a drained lease out of the table and frees its ring. It does nothing and
// reports false if the lease is not drained.
func (t *Leases) Drop(l *Lease) bool {
	if !l.Drained() {
		return false
	}
	t.drop(l)
	return true
}

// ForceDrop drops a lease in any state. It is for when it is known by other means that
// the peer cannot write any more: the stream has ended on both sides, or the landing
// memory has been deregistered. Dropping a lease twice does nothing.
func (t *Leases) ForceDrop(l *Lease) {
	if l.state == LeaseDropped {
		return
	}
	if !l.Drained() {
		t.stats.Forced++
	}
	t.drop(l)
}

func (t *Leases) drop(l *Lease) {
	l.state = LeaseDropped
	t.table[l.Index] = nil
	t.free = append(t.free, l.Index)
	t.stats.Out--
	l.Ring.arena.Free(l.Ring)
}

// Stats returns a snapshot.
func (t *Leases) Stats() LeaseStats { return t.stats }
