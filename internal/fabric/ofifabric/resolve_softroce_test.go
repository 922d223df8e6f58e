//go:build linux && cgo && softroce

package ofifabric_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// Messages are not held up by a peer at an address that no host has in the network of
// scripts/softroce.sh: it is refused, or connecting to it does not block.
func TestUnreachablePeer(t *testing.T) {
	a, b := pair(t, "verbs;ofi_rxm")
	out, in := mapped(t, 4096), mapped(t, 4096)
	sent, received := a.register(out, pool.AccessLocal), b.register(in, pool.AccessLocal)
	roundTrip := func() {
		b.post(a, fabric.Op{Kind: fabric.Recv, Buf: in[:64], Desc: received.Desc()})
		a.post(b, fabric.Op{Kind: fabric.Send, To: a.peer, Buf: out[:32], Desc: sent.Desc()})
		require.NoError(t, b.await(a, fabric.Recv).Err)
		require.NoError(t, a.await(b, fabric.Send).Err)
	}
	roundTrip() // connects them

	nobody := bytes.Clone(b.Name())
	copy(nobody[4:], []byte{10, 9, 0, 77})
	inserted := make(chan error)
	hello := outside(t, "hello")
	start := time.Now()
	go func() {
		addr, err := a.Insert(nobody)
		for err == nil && time.Since(start) < 3*time.Second { // libfabric connects when it is asked to send
			_, _, _ = a.Exchange([]fabric.Op{{Kind: fabric.Inject, To: addr, Buf: hello}}, nil)
			time.Sleep(10 * time.Millisecond)
		}
		inserted <- err
	}()
	var trips int
	var longest time.Duration
	for {
		select {
		case err := <-inserted:
			t.Logf("%v after %v; %d round trips, the longest of %v", err, time.Since(start), trips, longest)
			if err != nil {
				assert.ErrorContains(t, err, "no way from 10.9.0.1 to 10.9.0.77")
			}
			assert.Less(t, time.Since(start), 4*time.Second)
			assert.Greater(t, trips, 10)
			assert.Less(t, longest, time.Second)
			return
		default:
		}
		begin := time.Now()
		roundTrip()
		longest = max(longest, time.Since(begin))
		trips++
	}
}
