//go:build !race

package engine

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/pool"
)

// TestThousandPeers: one endpoint has a thousand peers, which all do round trips and move a
// mebibyte each way at once, in less memory than a ring of a mebibyte each would take. Every one of them gets
// a ring, if it goes on: by the time that there is memory for it, its first mebibyte may have come small.
func TestThousandPeers(t *testing.T) {
	const peers, limit, patience = 1000, 256 << 20, time.Minute
	s := newBudgetStar(t, deepSim(), Config{Budget: pool.NewBudget(limit), PeerSlots: SharedSlots / 4}, peers)
	defer s.close(t)
	require.Equal(t, peers, s.hub.Stats().Peers)
	var wg sync.WaitGroup
	var mebibytes atomic.Uint64
	var conns [][2]*Conn
	for i := range peers {
		a, b := s.dial(t, i)
		conns = append(conns, [2]*Conn{a, b})
	}
	start := time.Now()
	for i, c := range conns {
		wg.Go(func() {
			assert.NoError(t, roundTripTo(c[0], c[1]), "peer %d", i)
			assert.NoError(t, c[0].SetDeadline(time.Time{}))
			assert.NoError(t, c[1].SetDeadline(time.Time{}))
			for again := true; again; again = c[1].Seen().LargeIn == 0 && time.Since(start) < patience {
				if !assert.NoError(t, transfer(c[0], c[1], 1<<20), "peer %d", i) {
					return
				}
				mebibytes.Add(1)
			}
		})
	}
	wg.Wait()
	small, large := uint64(0), 0
	for _, c := range conns {
		n := c[1].Seen()
		small += n.SmallIn
		if n.LargeIn > 0 {
			large++
		}
	}
	b := s.hub.core.cfg.Budget.Stats()
	t.Logf("in %v; %d of %d MiB used at most; %d peers had rings, %d %% of %d MiB came small; %d rings taken back",
		time.Since(start), b.High>>20, limit>>20, large, small*100/(mebibytes.Load()<<20), mebibytes.Load(), s.hub.Stats().LeasesRevoked)
	assert.LessOrEqual(t, b.High, int64(limit))
	assert.Equal(t, peers, large)
	for _, c := range conns {
		closeConns(t, c[:]...)
	}
}
