package rdmanet_test

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// oneEndpoint is a fabric that can open no more than one.
type oneEndpoint struct {
	fabric.Fabric
	opens  atomic.Int32
	second chan struct{} // if any, a further one fails only when this is closed
}

func (f *oneEndpoint) Open(name string, src netip.Addr) (fabric.Endpoint, error) {
	if f.opens.Add(1) == 1 {
		return f.Fabric.Open(name, src)
	}
	if f.second != nil {
		<-f.second
	}
	return nil, errors.New("no more")
}

// TestSpareFails: newcomers do not wait for an endpoint that others could do without, and
// once it can't be opened, they do not try again at once.
func TestSpareFails(t *testing.T) {
	spread := simfabric.TCP()
	spread.Spread = true
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: spread})
	one := &oneEndpoint{Fabric: n, second: make(chan struct{})}
	hub := rdmanet.NewTransport(one)
	cleanly(t, hub)
	l := listen(t, rdmanet.ListenConfig{Transport: hub})
	newcomer := func() {
		there := rdmanet.NewTransport(n)
		a, b := meet(t, &rdmanet.Dialer{Transport: there}, l)
		t.Cleanup(func() {
			closeAll(t, a, b)
			assert.NoError(t, there.Close())
		})
		echo(t, a, b)
	}
	for range 20 {
		newcomer()
	}
	assert.EqualValues(t, 2, one.opens.Load())
	close(one.second)
	endpoints := func() int { return hub.Stats().Providers[spread.Provider].Endpoints }
	for range 20 {
		newcomer()
	}
	eventually(t, func() bool { return endpoints() == 1 }, "nothing is left of it")
	assert.EqualValues(t, 2, one.opens.Load())
	assert.Zero(t, hub.Stats().PeersRefused)
}

// TestSpread: where a look at the queue takes the longer the more peers an endpoint has, and
// where those that are busy would find no receives, peers have several, but for want of
// memory, or of anything else, they share one.
func TestSpread(t *testing.T) {
	spread, few := simfabric.TCP(), simfabric.TCP()
	spread.Spread = true
	few.RxDepth = 256 // for 51 peers, of which none has more than the least
	one := func(f fabric.Fabric) fabric.Fabric { return &oneEndpoint{Fabric: f} }
	for name, tt := range map[string]struct {
		personality simfabric.Personality
		peers, each int
		fabric      func(fabric.Fabric) fabric.Fabric
		limit       int64
		endpoints   int
	}{
		"as many as it takes":               {personality: spread, peers: 40, each: 17, endpoints: 3},
		"no memory":                         {personality: spread, peers: 40, each: 17, limit: 6 << 20, endpoints: 1},
		"no further endpoint":               {personality: spread, peers: 40, each: 17, fabric: one, endpoints: 1},
		"a quarter of the receives":         {personality: few, peers: 40, each: 39, endpoints: 2},
		"the same, and no memory":           {personality: few, peers: 40, each: 39, limit: 6 << 20, endpoints: 1},
		"the same, and no further endpoint": {personality: few, peers: 40, each: 39, fabric: one, endpoints: 1},
	} {
		t.Run(name, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Seed: 1, Personality: tt.personality})
			var f fabric.Fabric = n
			if tt.fabric != nil {
				f = tt.fabric(n)
			}
			hub := rdmanet.NewTransport(f)
			hub.MemoryLimit = tt.limit
			cleanly(t, hub)
			l := listen(t, rdmanet.ListenConfig{Transport: hub})
			endpoints := func() int { return hub.Stats().Providers[tt.personality.Provider].Endpoints }
			var leave []func()
			join := func() {
				there := rdmanet.NewTransport(n)
				a, b := meet(t, &rdmanet.Dialer{Transport: there}, l)
				leave = append(leave, func() {
					closeAll(t, a, b)
					assert.NoError(t, there.Close())
				})
				echo(t, a, b)
			}
			for i := range tt.peers {
				join()
				eventually(t, func() bool { return endpoints() == min((i+1)/tt.each+1, tt.endpoints) }, "one is opened for the next")
			}
			stay := tt.peers / tt.each * tt.each
			for _, f := range leave[stay:] {
				f()
			}
			eventually(t, func() bool { return hub.Stats().Peers == stay }, "they are gone")
			assert.Equal(t, tt.endpoints, endpoints(), "one is kept for the next")
			leave[0]()
			leave[1]()
			eventually(t, func() bool { return hub.Stats().Peers == stay-2 }, "they are gone")
			join()
			eventually(t, func() bool { return endpoints() == min((stay+tt.each-1)/tt.each, tt.endpoints) }, "but not where another one has room")
			for _, f := range append(leave[2:stay], leave[len(leave)-1]) {
				f()
			}
			eventually(t, func() bool { return endpoints() == 1 }, "one is kept")
			assert.Empty(t, hub.Stats().HandshakeFailures)
			assert.Zero(t, hub.Stats().PeersRefused)
		})
	}
}
