package rdmanet_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// oneEndpoint is a fabric that can open no more than one.
type oneEndpoint struct {
	fabric.Fabric
	opened bool
}

func (f *oneEndpoint) Open(name string, src netip.Addr) (fabric.Endpoint, error) {
	if f.opened {
		return nil, errors.New("no more")
	}
	f.opened = true
	return f.Fabric.Open(name, src)
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
		"as many as it takes":               {personality: spread, peers: 40, each: 16, endpoints: 3},
		"no memory":                         {personality: spread, peers: 40, each: 16, limit: 6 << 20, endpoints: 1},
		"no further endpoint":               {personality: spread, peers: 40, each: 16, fabric: one, endpoints: 1},
		"a quarter of the receives":         {personality: few, peers: 40, each: 38, endpoints: 2},
		"the same, and no memory":           {personality: few, peers: 40, each: 38, limit: 6 << 20, endpoints: 1},
		"the same, and no further endpoint": {personality: few, peers: 40, each: 38, fabric: one, endpoints: 1},
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
			for i := range tt.peers {
				there := rdmanet.NewTransport(n)
				a, b := meet(t, &rdmanet.Dialer{Transport: there}, l)
				leave = append(leave, func() {
					closeAll(t, a, b)
					assert.NoError(t, there.Close())
				})
				echo(t, a, b)
				require.Equal(t, min(i/tt.each+1, tt.endpoints), endpoints())
			}
			stay := tt.peers / tt.each * tt.each
			for _, f := range leave[stay:] {
				f()
			}
			eventually(t, func() bool { return hub.Stats().Peers == stay }, "they are gone")
			assert.Equal(t, tt.endpoints, endpoints(), "one is kept for the next")
			leave[0]()
			eventually(t, func() bool { return hub.Stats().Peers == stay-1 }, "it is gone")
			there := rdmanet.NewTransport(n)
			a, b := meet(t, &rdmanet.Dialer{Transport: there}, l)
			leave[0] = func() {
				closeAll(t, a, b)
				assert.NoError(t, there.Close())
			}
			eventually(t, func() bool { return endpoints() == min((stay+tt.each-1)/tt.each, tt.endpoints) }, "but not where another one has room")
			for _, f := range leave[:stay] {
				f()
			}
			eventually(t, func() bool { return endpoints() == 1 }, "one is kept")
			assert.Empty(t, hub.Stats().HandshakeFailures)
			assert.Zero(t, hub.Stats().PeersRefused)
		})
	}
}
