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
