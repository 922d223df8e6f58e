package simfabric

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// BenchmarkOp posts one operation and reaps its completions at both ends. That is the cost that
// the simulation adds to every figure measured over it.
func BenchmarkOp(b *testing.B) {
	const small, large = 64, slabSize
	for _, op := range []struct {
		name string
		kind fabric.Kind
		size int
	}{
		{"send", fabric.Send, small},
		{"inject", fabric.Inject, small},
		{"writedata", fabric.WriteData, large},
	} {
		b.Run(fmt.Sprintf("op=%s/size=%d", op.name, op.size), func(b *testing.B) {
			n, s, r := pair(b, Config{Seed: 1, Personality: Verbs()})
			post := []fabric.Op{s.op(op.kind, 1, 0, op.size)}
			recv := []fabric.Op{r.op(fabric.Recv, 2, 0, small)}
			sent := 1
			switch op.kind {
			case fabric.Inject:
				sent = 0 // no completion
			case fabric.WriteData:
				post[0], recv = s.write(r, op.kind, 1, 0, op.size), nil
			}
			done := make([]fabric.Completion, 4)
			b.SetBytes(int64(op.size))
			b.ReportAllocs()
			for b.Loop() {
				exchange(b, r, recv, done, 0)
				exchange(b, s, post, done, sent)
				exchange(b, r, nil, done, 1)
			}
			require.Zero(b, n.Stats().SendsWithoutReceive)
		})
	}
}

// exchange posts ops and polls until it has reaped want completions.
func exchange(b *testing.B, s *side, ops []fabric.Op, done []fabric.Completion, want int) {
	for {
		_, reaped, err := s.Exchange(ops, done)
		if err != nil {
			b.Fatal(err)
		}
		for _, c := range done[:reaped] {
			if c.Err != nil {
				b.Fatal(c.Err)
			}
		}
		if want -= reaped; want <= 0 {
			return
		}
		ops = nil
	}
}
