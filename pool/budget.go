package pool

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// DefaultLimit is the limit of a Budget that is given none: 256 MiB. That is room
// for 128 landing rings of 2 MiB, and still small next to a server's heap.
const DefaultLimit = 256 << 20

// ErrBudget is wrapped by the error of every allocation that would exceed the
// budget.
var ErrBudget = errors.New("pool: memory budget exhausted")

// Budget limits the bytes that are mapped by everything that shares it. All methods
// may be called concurrently.
type Budget struct {
	limit   int64
	used    atomic.Int64 // reserved
	high    atomic.Int64
	mapped  atomic.Int64 // counted where memory is mapped, not where it is paid for
	foreign atomic.Int64 // see BudgetStats
	others  atomic.Int64 // slabs that foreign is made of
	short   atomic.Uint64
}

// BudgetStats is a snapshot of a Budget, in bytes.
type BudgetStats struct {
	Limit int64
	Used  int64
	High  int64 // the most that Used has been
	// Mapped is never more than Used, except for what changes while a snapshot is taken.
	// The rest of Used is promised, or about to be mapped.
	Mapped int64
	// Foreign is the memory of other processes that is mapped here, no more than Limit.
	// Those processes pay for it: it is not part of Used.
	Foreign int64
}

// NewBudget returns a budget of limit bytes, or of DefaultLimit if limit is not
// positive.
func NewBudget(limit int64) *Budget {
	if limit <= 0 {
		limit = DefaultLimit
	}
	return &Budget{limit: limit}
}

// Reserve takes n bytes. If there are not so many left, it takes none and returns an
// error that wraps ErrBudget.
func (b *Budget) Reserve(n int64) error {
	if n < 0 {
		panic("pool: negative reservation")
	}
	for {
		used := b.used.Load()
		if n > b.limit-used {
			return fmt.Errorf("%w: %d bytes wanted, %d of %d in use", ErrBudget, n, used, b.limit)
		}
		if b.used.CompareAndSwap(used, used+n) {
			b.raise(used + n)
			return nil
		}
	}
}

// smallForeign is the size up to which slabs of other processes are limited by their number alone, in
// bytes: what a path check maps must not depend on what rings there are.
const smallForeign = 64 << 10

// reserveForeign takes n bytes for a slab of another process.
func (b *Budget) reserveForeign(n int64) error {
	if others, foreign := b.others.Add(1), b.foreign.Add(n); others > maxForeign || foreign > b.limit && n > smallForeign {
		b.releaseForeign(n)
		return fmt.Errorf("%w: %d bytes of another process's wanted, %d of %d mapped, in %d of %d pieces", ErrBudget, n, foreign-n, b.limit, others-1, maxForeign)
	}
	return nil
}

func (b *Budget) releaseForeign(n int64) {
	b.others.Add(-1)
	b.foreign.Add(-n)
}

// raise keeps the high-water mark.
func (b *Budget) raise(used int64) {
	for {
		high := b.high.Load()
		if used <= high || b.high.CompareAndSwap(high, used) {
			return
		}
	}
}

// Release gives back n bytes that Reserve took.
func (b *Budget) Release(n int64) {
	if n < 0 || b.used.Add(-n) < 0 {
		panic("pool: released more than was reserved")
	}
}

// RunShort tells everything that shares the budget that one of its users lacks memory which
// others might do without.
func (b *Budget) RunShort() { b.short.Add(1) }

// Shortages returns how often RunShort has been called.
func (b *Budget) Shortages() uint64 { return b.short.Load() }

// Stats returns a snapshot.
func (b *Budget) Stats() BudgetStats {
	return BudgetStats{Limit: b.limit, Used: b.used.Load(), High: b.high.Load(), Mapped: b.mapped.Load(), Foreign: b.foreign.Load()}
}
