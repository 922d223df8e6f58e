//go:build linux && cgo

package ofifabric_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// BenchmarkPingPong measures a round trip of 64 bytes between two endpoints that
// one goroutine drives: the cost of four calls and of the provider, without
// any waiting.
func BenchmarkPingPong(b *testing.B) {
	for _, provider := range providers {
		b.Run(provider, func(b *testing.B) {
			x, y := pair(b, provider)
			run := func(from, to *side, ops []fabric.Op, done []fabric.Completion) {
				posted := 0
				for posted < len(ops) {
					n, _, err := from.Exchange(ops[posted:], nil)
					if err != nil {
						b.Fatal(err)
					}
					if posted += n; n == 0 {
						from.poll()
					}
				}
				for {
					_, n, err := to.Exchange(nil, done)
					if err != nil {
						b.Fatal(err)
					}
					if n > 0 {
						return
					}
					from.poll() // some providers send from here
				}
			}
			mem := mapped(b, 8192)
			for i, s := range []*side{x, y} {
				region := s.register(mem[i*4096:(i+1)*4096], pool.AccessLocal)
				s.post(s, fabric.Op{Kind: fabric.Recv, Buf: mem[i*4096:][:64], Desc: region.Desc()})
			}
			// The first message connects the two. Both have to poll for that.
			for _, s := range [][2]*side{{x, y}, {y, x}} {
				from, to := s[0], s[1]
				from.post(to, fabric.Op{Kind: fabric.Inject, To: from.peer, Buf: outside(b, "connect")})
				to.await(from, fabric.Recv)
			}
			x.post(y, fabric.Op{Kind: fabric.Recv, Buf: mem[:64]})
			y.post(x, fabric.Op{Kind: fabric.Recv, Buf: mem[4096:][:64]})
			// Each side posts the receive for the next round together with its message.
			message := mapped(b, min(64, x.Attr().InjectSize))
			done := make([]fabric.Completion, 8)
			ping := []fabric.Op{{Kind: fabric.Inject, To: x.peer, Buf: message}}
			pong := []fabric.Op{
				{Kind: fabric.Recv, Buf: mem[4096:][:64]},
				{Kind: fabric.Inject, To: y.peer, Buf: message},
			}
			again := []fabric.Op{{Kind: fabric.Recv, Buf: mem[:64]}}
			b.ReportAllocs()
			for b.Loop() {
				run(x, y, ping, done)
				run(y, x, pong, done)
				n, _, err := x.Exchange(again, nil)
				require.NoError(b, err)
				require.Equal(b, 1, n)
			}
			_, _, err := y.Exchange(nil, done)
			require.NoError(b, err)
		})
	}
}

// BenchmarkPoll polls an empty queue.
func BenchmarkPoll(b *testing.B) {
	x := open(b, "shm")
	done := make([]fabric.Completion, 16)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := x.Exchange(nil, done); err != nil {
			b.Fatal(err)
		}
	}
}
