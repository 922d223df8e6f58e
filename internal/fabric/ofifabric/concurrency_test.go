//go:build linux && cgo

package ofifabric_test

import (
	"sync"
	"testing"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/pool"
	"github.com/stretchr/testify/require"
)

// Several goroutines post while another one reaps: every send completes
// exactly once, with its own tag, although there are more than the queue and
// the table of contexts hold.
func TestConcurrentPosting(t *testing.T) {
	const posters, each = 4, 400
	for _, provider := range testenv.Providers() {
		t.Run(provider, func(t *testing.T) {
			a, b := pair(t, provider)
			out, in := mapped(t, 4096), mapped(t, 4096)
			sent, received := a.register(out, pool.AccessLocal), b.register(in, pool.AccessLocal)
			recv := fabric.Op{Kind: fabric.Recv, Buf: in[:64], Desc: received.Desc()}
			for range 128 {
				b.post(a, recv)
			}
			var wg sync.WaitGroup
			deadline := time.Now().Add(timeout)
			for p := range posters {
				wg.Go(func() {
					for i := 0; i < each && time.Now().Before(deadline); {
						n, _, err := a.Exchange([]fabric.Op{{
							Kind: fabric.Send, To: a.peer, Buf: out[:32], Desc: sent.Desc(), Tag: uint32(p*each + i),
						}}, nil)
						if err != nil {
							t.Error(err)
							return
						}
						i += n
					}
				})
			}
			tags := make(map[uint32]bool)
			arrived := 0
			for len(tags) < posters*each || arrived < posters*each {
				if time.Now().After(deadline) {
					t.Errorf("%d sent and %d received of %d", len(tags), arrived, posters*each)
					break
				}
				a.poll()
				b.poll()
				for _, c := range a.got {
					require.NoError(t, c.Err)
					require.False(t, tags[c.Tag])
					tags[c.Tag] = true
				}
				for _, c := range b.got {
					require.NoError(t, c.Err)
					arrived++
					b.post(a, recv)
				}
				a.got, b.got = nil, nil
			}
			wg.Wait()
		})
	}
}
