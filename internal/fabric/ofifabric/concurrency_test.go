//go:build linux && cgo

package ofifabric_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/pool"
)

// Several goroutines post while another one reaps. Every send completes
// exactly once, with its own tag, although there are more sends than the queue and
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

// While memory is registered and deregistered, all of a peer's writes to other memory arrive.
// In net of libfabric 1.17 they could be lost without an error: see
// Endpoint.regions in package ofi.
func TestRegionsComeAndGo(t *testing.T) {
	const size, ahead = 16 << 10, 16
	for _, provider := range testenv.Providers() {
		t.Run(provider, func(t *testing.T) {
			a, b := pair(t, provider)
			kind, arrival := fabric.WriteData, fabric.RemoteWrite
			if b.Attr().CQDataSize < 4 {
				kind, arrival = fabric.Write, fabric.Write // the completion at the source has to do
			}
			from, to, other := mapped(t, size), mapped(t, size), mapped(t, 1<<20)
			source, target := a.register(from, pool.AccessLocal), b.register(to, pool.AccessRemoteWrite)
			write := fabric.Op{
				Kind: kind, To: a.peer, Buf: from, Desc: source.Desc(), Remote: target.Base(), Key: target.Key(),
			}
			var wg sync.WaitGroup
			var over atomic.Bool
			defer wg.Wait()
			defer over.Store(true)
			wg.Go(func() {
				for !over.Load() {
					var regions [8]pool.Region
					for i := range regions {
						r, err := b.Register(other[i*4096:][:4096], pool.AccessRemoteWrite)
						if err != nil {
							t.Error(err)
							return
						}
						regions[i] = r
					}
					for _, r := range regions {
						if err := r.Close(); err != nil {
							t.Error(err)
						}
					}
				}
			})
			posted, arrived, last := 0, 0, time.Now()
			for end := time.Now().Add(2 * time.Second); arrived < posted || time.Now().Before(end); {
				if posted-arrived < ahead && time.Now().Before(end) {
					n, _, err := a.Exchange([]fabric.Op{write}, nil)
					require.NoError(t, err)
					posted += n
				}
				a.poll()
				b.poll()
				for _, c := range append(a.got, b.got...) {
					require.NoError(t, c.Err)
					if c.Kind == arrival {
						arrived, last = arrived+1, time.Now()
					}
				}
				a.got, b.got = nil, nil
				if time.Since(last) > timeout {
					t.Errorf("%d of %d writes are lost", posted-arrived, posted)
					break
				}
				runtime.Gosched()
			}
			assert.Positive(t, arrived)
		})
	}
}
