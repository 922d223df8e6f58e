package rdmanet_test

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// rigged is a simulated fabric with faults that a provider's rules do not cover.
type rigged struct {
	*simfabric.Network
	// frozen: nothing is posted, and nothing completes.
	frozen atomic.Bool
	// gated: inserting an address waits for the gate.
	gated   atomic.Bool
	gate    chan struct{}
	waiting atomic.Int32 // at the gate
	// void, unless it is nil, gets what is sent to addresses that were removed before, as if
	// the provider had a broken connection to them, and kept it.
	void []byte
}

func newRigged(p simfabric.Personality) *rigged {
	return &rigged{Network: simfabric.New(simfabric.Config{Personality: p}), gate: make(chan struct{})}
}

type riggedEndpoint struct {
	fabric.Endpoint
	r *rigged

	mu    sync.Mutex // guards what follows
	names map[fabric.Addr]string
	gone  map[string]bool
}

func (r *rigged) Open(provider string, src netip.Addr) (fabric.Endpoint, error) {
	ep, err := r.Network.Open(provider, src)
	if err != nil {
		return nil, err
	}
	return &riggedEndpoint{Endpoint: ep, r: r, names: map[fabric.Addr]string{}, gone: map[string]bool{}}, nil
}

func (e *riggedEndpoint) Insert(name []byte) (fabric.Addr, error) {
	if e.r.gated.Load() {
		e.r.waiting.Add(1)
		<-e.r.gate
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone[string(name)] && e.r.void != nil {
		return e.Endpoint.Insert(e.r.void)
	}
	a, err := e.Endpoint.Insert(name)
	e.names[a] = string(name)
	return a, err
}

func (e *riggedEndpoint) Remove(a fabric.Addr) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gone[e.names[a]] = true
	return e.Endpoint.Remove(a)
}

func (e *riggedEndpoint) Exchange(ops []fabric.Op, done []fabric.Completion) (posted, reaped int, err error) {
	if e.r.frozen.Load() {
		return 0, 0, nil
	}
	return e.Endpoint.Exchange(ops, done)
}
