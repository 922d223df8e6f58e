package engine

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// lonelyCore returns a core without goroutines of its own.
func lonelyCore(t *testing.T) (*core, *simfabric.Network) {
	t.Helper()
	net := simfabric.New(simfabric.Config{Personality: simfabric.TCP()})
	fab, err := net.Open("tcp;ofi_rxm", netip.Addr{})
	require.NoError(t, err)
	c, err := newCore(fab, Config{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.shutdown() })
	return c, net
}

// alone returns as much of an Endpoint as c needs if only one goroutine uses it.
func alone(c *core) *Endpoint {
	if c.owner == nil {
		e := endpointOf(c)
		e.pause = func(*waiter) {}
	}
	return c.owner
}

// newPeerAlone makes a peer on such a core.
func newPeerAlone(c *core, token [16]byte, cfg PeerConfig) (*peer, error) {
	e := alone(c)
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.newPeer(token, cfg)
}

// carryOut carries out the orders of the core, as the endpoint's own goroutine otherwise does.
func (c *core) carryOut() {
	for o := c.nextOrder(); o != nil; o = c.nextOrder() {
		o.carryOut()
		c.supplied(o)
	}
}

// TestNoPeerOfABrokenEndpoint: an endpoint that breaks down while it takes a new peer does not
// count that peer, so that it does not look like one that is in use.
func TestNoPeerOfABrokenEndpoint(t *testing.T) {
	c, net := lonelyCore(t)
	net.Kill(c.fab, simfabric.DeathRefuse)
	_, err := newPeerAlone(c, [16]byte{1}, PeerConfig{})
	require.Error(t, err)
	require.Error(t, c.err)
	require.Empty(t, c.peers)
	require.Empty(t, c.order)
}
