package engine

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// freeze gives the hub one more peer, which stops for good. It then writes to that peer until
// nothing more goes out, and gives it up.
func (s *star) freeze(t *testing.T) {
	t.Helper()
	const writers = 12
	if s.hub.Room() != RoomOpen {
		s.olds, s.hub = append(s.olds, s.hub), s.open()
	}
	s.join(t)
	spoke := len(s.spokes) - 1
	var conns, outers []*Conn
	for i := range writers {
		outer, inner := s.dial(t, spoke)
		conns, outers = append(conns, inner), append(outers, outer)
		if i%2 == 0 { // it gets a landing ring
			go func() { _, _ = inner.Write(make([]byte, 128<<10)) }()
			for n, buf := 0, make([]byte, 128<<10); n < len(buf); {
				m, err := outer.Read(buf)
				require.NoError(t, err)
				n += m
			}
		}
	}
	s.net.Kill(s.spokes[spoke].fab, simfabric.DeathSilent)
	var wg sync.WaitGroup
	for i, c := range conns {
		require.NoError(t, c.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
		wg.Go(func() {
			for size := 500 + (i+1)%2*(64<<10); ; {
				if _, err := c.Write(make([]byte, size)); err != nil {
					assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
					return
				}
			}
		})
	}
	wg.Wait()
	s.hubs[spoke].Lost(ErrStuck)
	s.peers[spoke].Lost(ErrStuck)
	for _, c := range append(conns, outers...) {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
	for range deadLooks { // as the timer does
		s.hub.doChores()
	}
}

// TestFrozenPeersOneAfterAnother: peers stop one after another. What they hold for as long as the
// endpoint is open is made up for, and an endpoint of which they hold much is asked to take no more
// peers.
func TestFrozenPeersOneAfterAnother(t *testing.T) {
	const frozen = 30
	for _, name := range []string{"tcp", "verbs", "saw", "cqdata"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStar(t, personalities()[name], Config{DeadAfter: time.Hour}, 1)
			defer s.close(t)
			a, b := s.dial(t, 0)
			healthy(t, a, b)
			first := s.hub
			before := first.Stats().Free
			for i := range frozen {
				s.freeze(t)
				if !t.Run(fmt.Sprint("after ", i+1), func(t *testing.T) { healthy(t, a, b) }) {
					break
				}
			}
			assert.EventuallyWithT(t, func(t *assert.CollectT) { // credits may still be on their way
				after := first.Stats().Free
				assert.GreaterOrEqual(t, after.SendSlots, before.SendSlots)
				assert.GreaterOrEqual(t, after.StageChunks, before.StageChunks)
				assert.GreaterOrEqual(t, after.Operations, before.Operations*3/4)
			}, 10*time.Second, time.Millisecond)
			assert.NoError(t, a.SetLinger(0))
			assert.NoError(t, b.SetLinger(0))
			_, _ = a.Close(), b.Close()
			t.Logf("%d endpoints were stale", len(s.olds))
			assert.NotEmpty(t, s.olds)
		})
	}
}
