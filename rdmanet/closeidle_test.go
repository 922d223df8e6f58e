package rdmanet_test

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// lingering is a simulated fabric. While on is set, Close of its endpoints does not return before end
// is closed.
type lingering struct {
	*simfabric.Network
	on         atomic.Bool
	begun, end chan struct{}
}

type lingeringEndpoint struct {
	fabric.Endpoint
	l *lingering
}

func (l *lingering) Open(provider string, src netip.Addr) (fabric.Endpoint, error) {
	ep, err := l.Network.Open(provider, src)
	return lingeringEndpoint{ep, l}, err
}

func (e lingeringEndpoint) Close() error {
	if e.l.on.Load() {
		e.l.begun <- struct{}{}
		<-e.l.end
	}
	return e.Endpoint.Close()
}

// TestCloseDuringCloseIdle: when Close returns, no endpoint is open, not even one that CloseIdle
// has begun to close.
func TestCloseDuringCloseIdle(t *testing.T) {
	for _, p := range []simfabric.Personality{simfabric.TCP(), simfabric.Shm()} {
		t.Run(p.Provider, func(t *testing.T) { closeDuringCloseIdle(t, p) })
	}
}

func closeDuringCloseIdle(t *testing.T, p simfabric.Personality) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: p})
	slow := &lingering{Network: n, begun: make(chan struct{}, 10), end: make(chan struct{})}
	here, there := rdmanet.NewTransport(slow), rdmanet.NewTransport(n)
	t.Cleanup(func() { there.Close() })
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
	d := &rdmanet.Dialer{Transport: here, DisableReuse: p.PerPeer}
	for range 2 {
		c, s := rdmatest.Meet(t, d, l)
		rdmatest.CloseAll(t, c, s)
	}
	// Over shm the peers go by themselves, on both sides: in one process, who closes last closes
	// both endpoints of a pair.
	rdmatest.Eventually(t, func() bool {
		s := here.Stats()
		return s.Providers[p.Provider].Endpoints == 1 && (!p.PerPeer || s.Peers == 0 && there.Stats().Peers == 0)
	}, "the shared endpoint, or the next peer's")
	slow.on.Store(true)
	idle, closed := make(chan struct{}), make(chan struct{})
	go func() { defer close(idle); here.CloseIdle() }()
	<-slow.begun
	go func() { defer close(closed); here.Close() }()
	select {
	case <-closed:
		assert.Fail(t, "Close has returned, and an endpoint is still open")
	case <-time.After(100 * time.Millisecond):
	}
	close(slow.end)
	<-idle
	<-closed
	assert.Zero(t, here.Stats().Memory.Used)
}

// TestOpenWhileAnotherCloses: an endpoint that takes long to close, for instance because its
// peer hangs, does not keep others from being opened.
func TestOpenWhileAnotherCloses(t *testing.T) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.Shm()})
	slow := &lingering{Network: n, begun: make(chan struct{}, 10), end: make(chan struct{})}
	here, there := rdmanet.NewTransport(slow), rdmanet.NewTransport(n)
	rdmatest.Cleanly(t, here, there)
	end := sync.OnceFunc(func() { slow.on.Store(false); close(slow.end) })
	t.Cleanup(end)
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
	d := &rdmanet.Dialer{Transport: here, DisableReuse: true, Timeout: rdmatest.Patience}
	c, s := rdmatest.Meet(t, d, l)
	slow.on.Store(true)
	closed := make(chan struct{})
	go func() { defer close(closed); rdmatest.CloseAll(t, c, s) }()
	<-slow.begun
	x, y := rdmatest.Meet(t, d, l)
	end()
	<-closed
	rdmatest.CloseAll(t, x, y)
}
