package rdmanet_test

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// opener is a fabric that counts the endpoints that it is asked to open. Before it opens the nth,
// it calls before, unless that is nil.
type opener struct {
	fabric.Fabric
	opens  atomic.Int32
	before func(nth int32) error
}

func (f *opener) Open(name string, src netip.Addr) (fabric.Endpoint, error) {
	if nth := f.opens.Add(1); f.before != nil {
		if err := f.before(nth); err != nil {
			return nil, err
		}
	}
	return f.Fabric.Open(name, src)
}

// spreadTCP returns a provider with which an endpoint gets 16 peers before another one is opened.
func spreadTCP() simfabric.Personality {
	p := simfabric.TCP()
	p.Spread = true
	return p
}

// TestBurstIsSpread: peers that come all at once are spread like any others, although they come
// while endpoints are being opened.
func TestBurstIsSpread(t *testing.T) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: spreadTCP()})
	hub := rdmanet.NewTransport(&opener{Fabric: n, before: func(int32) error {
		time.Sleep(50 * time.Millisecond) // so long that others come meanwhile
		return nil
	}})
	rdmatest.Cleanly(t, hub)
	var wg sync.WaitGroup
	for range 40 {
		there := rdmanet.NewTransport(n)
		defer func() { assert.NoError(t, there.Close()) }()
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
		wg.Go(func() {
			c, err := (&rdmanet.Dialer{Transport: hub}).Dial("rdma", l.Addr().String())
			if assert.NoError(t, err) {
				defer c.Close()
			}
		})
	}
	wg.Wait()
	assert.Equal(t, 3, hub.Stats().Providers[simfabric.TCP().Provider].Endpoints)
}

// TestPeerAtTheBrink: if the peer that is one too many for an endpoint comes and goes, another endpoint
// is opened once, not each time.
func TestPeerAtTheBrink(t *testing.T) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: spreadTCP()})
	counted := &opener{Fabric: n}
	hub := rdmanet.NewTransport(counted)
	rdmatest.Cleanly(t, hub)
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: hub})
	for range 15 {
		defer join(t, n, l)()
	}
	for range 5 {
		one, other := join(t, n, l), join(t, n, l)
		one()
		other()
		rdmatest.Eventually(t, func() bool { return hub.Stats().Peers == 15 }, "they are gone")
	}
	assert.EqualValues(t, 2, counted.opens.Load())
}

// TestAvoidedIfNeedBe: an endpoint that is avoided takes peers if no other can be opened.
func TestAvoidedIfNeedBe(t *testing.T) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.TCP()})
	hub := rdmanet.NewTransport(&opener{Fabric: n, before: func(nth int32) error {
		if nth > 1 {
			return errors.New("no more")
		}
		return nil
	}})
	rdmatest.Cleanly(t, hub)
	for range 3 {
		there := rdmanet.NewTransport(n)
		defer func() { assert.NoError(t, there.Close()) }()
		a, b := rdmatest.Meet(t, &rdmanet.Dialer{Transport: hub}, rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there}))
		rdmanet.Avoid(a)
		defer rdmatest.CloseAll(t, a, b)
	}
}

// join makes a new Transport, which stands for a process, dial l, and exchanges data with it. leave
// ends it.
func join(t *testing.T, n *simfabric.Network, l *rdmanet.Listener) (leave func()) {
	there := rdmanet.NewTransport(n)
	a, b := rdmatest.Meet(t, &rdmanet.Dialer{Transport: there}, l)
	rdmatest.Echo(t, a, b)
	return func() {
		rdmatest.CloseAll(t, a, b)
		assert.NoError(t, there.Close())
	}
}

// TestSpread: peers are spread over several endpoints where looking at a queue takes longer the
// more peers an endpoint has. If there is no memory for another endpoint, or it cannot be opened for any
// other reason, they share one, and not every newcomer pays for an attempt.
func TestSpread(t *testing.T) {
	const each = 16
	noSecond := func(nth int32) error {
		if nth > 1 {
			return errors.New("no more")
		}
		return nil
	}
	for name, tt := range map[string]struct {
		peers     int
		before    func(nth int32) error
		limit     int64
		endpoints int
		opens     int32 // for all peers together; 0: any number
	}{
		"as many as it takes": {peers: 40, endpoints: 3},
		"no memory":           {peers: 28, limit: 11 << 20, endpoints: 1},
		"no further endpoint": {peers: 28, before: noSecond, endpoints: 1, opens: 2},
	} {
		t.Run(name, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Seed: 1, Personality: spreadTCP()})
			counted := &opener{Fabric: n, before: tt.before}
			hub := rdmanet.NewTransport(counted)
			hub.MemoryLimit = tt.limit
			rdmatest.Cleanly(t, hub)
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: hub})
			endpoints := func() int { return hub.Stats().Providers[simfabric.TCP().Provider].Endpoints }
			var leave []func()
			for i := range tt.peers {
				leave = append(leave, join(t, n, l))
				require.Equal(t, min(i/each+1, tt.endpoints), endpoints())
			}
			if tt.opens > 0 {
				assert.Equal(t, tt.opens, counted.opens.Load())
			}
			stay := tt.peers / each * each
			for _, f := range leave[stay:] {
				f()
			}
			rdmatest.Eventually(t, func() bool { return hub.Stats().Peers == stay }, "they are gone")
			assert.Equal(t, tt.endpoints, endpoints(), "one is kept for the next")
			const few = each / 3
			for _, f := range leave[:few] {
				f()
			}
			rdmatest.Eventually(t, func() bool { return hub.Stats().Peers == stay-few }, "they are gone")
			leave[0] = join(t, n, l)
			assert.Equal(t, tt.endpoints, endpoints(), "still")
			for _, f := range append(leave[few:stay], leave[0]) {
				f()
			}
			rdmatest.Eventually(t, func() bool { return endpoints() == 1 }, "one is kept")
			assert.Empty(t, hub.Stats().HandshakeFailures)
			assert.Zero(t, hub.Stats().PeersRefused)
		})
	}
}
