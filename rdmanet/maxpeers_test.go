package rdmanet_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestMaxPeersAtOnce: when dials race for the last places, those that lose learn why, however
// far they had come.
func TestMaxPeersAtOnce(t *testing.T) {
	const places, dials = 2, 8
	for round := range rdmatest.Rounds(30, 500) {
		n := simfabric.New(simfabric.Config{Seed: uint64(round), Personality: simfabric.TCP()})
		there := rdmanet.NewTransport(n)
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, MaxPeers: places})
		var racers sync.WaitGroup
		var in atomic.Int32
		for range dials {
			here := rdmanet.NewTransport(n)
			t.Cleanup(func() { here.Close() })
			racers.Go(func() {
				c, err := (&rdmanet.Dialer{Transport: here, Timeout: rdmatest.Patience}).Dial("rdma", l.Addr().String())
				if err != nil {
					assert.ErrorIs(t, err, rdmanet.ErrTooManyPeers)
					return
				}
				in.Add(1)
				t.Cleanup(func() { c.Close() })
			})
		}
		racers.Wait()
		require.False(t, t.Failed(), "round %d", round)
		require.EqualValues(t, places, in.Load())
		require.NoError(t, there.Close())
	}
}

// TestIdlePeersMakeRoomAtOnce: peers without conns make room for dials that race, however
// those overtake each other.
func TestIdlePeersMakeRoomAtOnce(t *testing.T) {
	const places = 6
	for round := range rdmatest.Rounds(2, 50) {
		n := simfabric.New(simfabric.Config{Seed: uint64(round), Personality: simfabric.TCP()})
		there := rdmanet.NewTransport(n)
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, MaxPeers: places})
		dialer := func() *rdmanet.Dialer {
			here := rdmanet.NewTransport(n)
			t.Cleanup(func() { here.Close() })
			return &rdmanet.Dialer{Transport: here, Timeout: rdmatest.Patience}
		}
		for range places {
			c, s := rdmatest.Meet(t, dialer(), l)
			rdmatest.CloseAll(t, c, s)
		}
		time.Sleep(1100 * time.Millisecond) // so that they count as idle
		require.Equal(t, places, there.Stats().Peers)
		var racers sync.WaitGroup
		for range places {
			d := dialer()
			racers.Go(func() {
				c, err := d.Dial("rdma", l.Addr().String())
				if assert.NoError(t, err) {
					t.Cleanup(func() { c.Close() })
				}
			})
		}
		racers.Wait()
		require.False(t, t.Failed(), "round %d", round)
		require.NoError(t, there.Close())
	}
}

// TestFullListenerBesideOthers: peers are refused while other listeners come and go.
func TestFullListenerBesideOthers(t *testing.T) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.TCP()})
	there, here := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
	rdmatest.Cleanly(t, here, there)
	full := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, MaxPeers: 1})
	d := &rdmanet.Dialer{Transport: here}
	c, s := rdmatest.Meet(t, d, full)
	var over atomic.Bool
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			other := rdmanet.NewTransport(n)
			defer other.Close()
			for !over.Load() {
				_, err := (&rdmanet.Dialer{Transport: other, Timeout: time.Second}).Dial("rdma", full.Addr().String())
				assert.Error(t, err)
			}
		})
	}
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		l, err := (&rdmanet.ListenConfig{Transport: there}).Listen(t.Context(), "rdma", "127.0.0.1:0")
		require.NoError(t, err)
		c2, err := d.Dial("rdma", l.Addr().String())
		require.NoError(t, err)
		s2, err := l.Accept()
		require.NoError(t, err)
		rdmatest.CloseAll(t, c2, s2)
		l.Close()
	}
	over.Store(true)
	wg.Wait()
	rdmatest.CloseAll(t, c, s)
}
