package pool

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkBudget measures the accounting of one conn's receive window, from one
// goroutine and from all processors at the same time.
func BenchmarkBudget(b *testing.B) {
	const window = 64 << 10
	budget := NewBudget(0)
	b.Run("goroutines=1", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := budget.Reserve(window); err != nil {
				b.Fatal(err)
			}
			budget.Release(window)
		}
	})
	b.Run("goroutines=procs", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := budget.Reserve(window); err != nil {
					b.Error(err)
					return
				}
				budget.Release(window)
			}
		})
	})
	require.Zero(b, budget.Stats().Used)
}

// BenchmarkLeaseRelease measures what each read from a landing ring does with its
// lease: find it, release a prefix, check whether it is drained.
func BenchmarkLeaseRelease(b *testing.B) {
	l := NewArena(NewBudget(0), newDomain(), AccessRemoteWrite, 1<<20)
	ring, err := l.Alloc(1 << 20)
	require.NoError(b, err)
	var table Leases
	lease, err := table.Grant(ring, nil)
	require.NoError(b, err)
	b.ReportAllocs()
	pos := uint64(0)
	for b.Loop() {
		pos += 64 << 10
		held := table.Lookup(lease.Index)
		held.Release(pos)
		if held.Drained() {
			b.Fatal("drained")
		}
	}
	require.Equal(b, pos, lease.released)
	table.ForceDrop(lease)
	require.NoError(b, l.Close())
}
