package rdmanet

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/engine"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/ofifabric"
	"github.com/seed202c38ff/fabricnet/internal/rendezvous"
	"github.com/seed202c38ff/fabricnet/pool"
)

// Defaults of Transport.
const (
	// DefaultMemoryLimit is in bytes.
	DefaultMemoryLimit       = pool.DefaultLimit
	DefaultHeartbeatInterval = rendezvous.DefaultHeartbeat
	DefaultDeadAfter         = rendezvous.DefaultDeadAfter
	DefaultIdlePeerTimeout   = 30 * time.Second
	DefaultMaxShmPeers       = 32
	// DefaultReceiveWindow is in bytes.
	DefaultReceiveWindow = engine.DefaultWindow
)

// Transport holds what dialers and listeners share: fabric endpoints, the peers
// that were met, and the memory budget. The zero value is ready to use. Its
// fields must not be changed after first use, and it must not be copied. All
// methods may be called concurrently.
type Transport struct {
	// MemoryLimit bounds the memory for data, in bytes: what is mapped for
	// endpoints and landing rings, and what conns are promised as receive
	// window. 0 means DefaultMemoryLimit.
	MemoryLimit int64
	// HeartbeatInterval is how often peers are sent a sign of life at least, 0 for
	// DefaultHeartbeatInterval, or a third of DeadAfter if that is less. Peers
	// whose own DeadAfter asks for more get more.
	HeartbeatInterval time.Duration
	// DeadAfter is how long a peer may be silent before its conns fail with
	// ECONNRESET, 0 for DefaultDeadAfter. Peers are told, and send signs of life
	// accordingly.
	DeadAfter time.Duration
	// IdlePeerTimeout is how long a peer that was dialed is kept without conns,
	// 0 for DefaultIdlePeerTimeout.
	IdlePeerTimeout time.Duration
	// MaxShmPeers bounds how many peer processes can be reached through shared
	// memory at a time, each of which takes megabytes of /dev/shm. Further ones
	// get the next provider. 0 means DefaultMaxShmPeers.
	MaxShmPeers int
	// ReceiveWindow is how much small data a conn holds that has not been read,
	// in bytes, 0 for DefaultReceiveWindow. Conns get less when the memory
	// runs low.
	ReceiveWindow int

	fabric fabric.Fabric // nil: libfabric; set by tests

	once    sync.Once
	budget  *pool.Budget
	process [16]byte
	host    [16]byte
	ctx     context.Context // ends with Close
	cancel  context.CancelCauseFunc
	conns   atomic.Int64

	closing sync.Once
	hands   sync.WaitGroup // handshakes of both sides
	tasks   sync.WaitGroup // goroutines that take links apart

	// mu is a leaf: nothing of the engine or the rendezvous is called with it
	// held, since it is taken within their callbacks.
	mu         sync.Mutex
	closed     bool
	drained    bool // no more tasks
	lastID     uint32
	listeners  map[*Listener]struct{}
	providers  map[netip.Addr]providerList
	endpoints  map[endpointKey]*endpoint // those to share
	open       map[*endpoint]struct{}    // all, until their counters are in past
	shmPeers   int
	cleaned    bool // what dead processes had left in /dev/shm is removed
	links      map[*link]struct{}
	cache      map[linkKey]*link
	flights    map[flightKey]*flight
	janitor    *time.Timer // nil while there is no dialed link
	failed     map[string]uint64
	fellBack   map[string]uint64
	past       map[string]ProviderStats // of closed endpoints
	pastOnWire rendezvous.Stats         // of ended sessions
}

// DefaultTransport is used by dialers and listeners that have no Transport of
// their own. It should not be closed.
var DefaultTransport = new(Transport)

func transportOr(t *Transport) *Transport {
	if t == nil {
		t = DefaultTransport
	}
	t.once.Do(t.init)
	return t
}

func (t *Transport) init() {
	if t.fabric == nil {
		t.fabric = ofifabric.New()
	}
	t.budget = pool.NewBudget(t.MemoryLimit)
	rand.Read(t.process[:]) // never fails
	if t.host = hostID(); t.host == [16]byte{} {
		t.host = t.process // alone on its host, for all we know
	}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	t.listeners = make(map[*Listener]struct{})
	t.providers = make(map[netip.Addr]providerList)
	t.endpoints = make(map[endpointKey]*endpoint)
	t.open = make(map[*endpoint]struct{})
	t.links = make(map[*link]struct{})
	t.cache = make(map[linkKey]*link)
	t.flights = make(map[flightKey]*flight)
	t.failed = make(map[string]uint64)
	t.fellBack = make(map[string]uint64)
	t.past = make(map[string]ProviderStats)
}

func orDefault[T int | time.Duration](v, d T) T {
	if v <= 0 {
		return d
	}
	return v
}

func (t *Transport) idleTimeout() time.Duration {
	return orDefault(t.IdlePeerTimeout, DefaultIdlePeerTimeout)
}

func (t *Transport) engineConfig() engine.Config {
	return engine.Config{
		Budget:    t.budget,
		Window:    max(t.ReceiveWindow, 0),
		DeadAfter: orDefault(t.DeadAfter, DefaultDeadAfter),
	}
}

// heartbeat is the interval in force: a short DeadAfter shortens the default.
func (t *Transport) heartbeat() time.Duration {
	dead := orDefault(t.DeadAfter, DefaultDeadAfter)
	return orDefault(t.HeartbeatInterval, min(DefaultHeartbeatInterval, dead/3))
}

// check finds settings that contradict each other.
func (t *Transport) check() error {
	dead := orDefault(t.DeadAfter, DefaultDeadAfter)
	if beat := t.heartbeat(); beat >= dead {
		return fmt.Errorf("Transport.HeartbeatInterval (%v) is not below Transport.DeadAfter (%v)", beat, dead)
	}
	return nil
}

// begin counts a handshake until end.
func (t *Transport) begin() (end func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, net.ErrClosed
	}
	t.hands.Add(1)
	return t.hands.Done, nil
}

// spawn runs f in a goroutine that Close waits for. It may be called from
// callbacks. After Close there is nothing left to do.
func (t *Transport) spawn(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.drained {
		t.tasks.Go(f)
	}
}

// CloseIdle closes the peers and endpoints that no conn uses.
func (t *Transport) CloseIdle() {
	t = transportOr(t)
	t.sweep(0)
	t.closeEndpoints(func(ep *endpoint) bool { return ep.refs == 0 })
}

// Close closes all listeners, ends all handshakes, fails all conns that are
// still open, says goodbye to the peers, and frees all endpoints and their
// memory. When it returns, no goroutine, file or shared memory of the Transport
// is left, but for Buffers that were not released and conns that use plain TCP.
// The Transport cannot be used again.
func (t *Transport) Close() error {
	t = transportOr(t)
	t.closing.Do(t.shutdown)
	return nil
}

func (t *Transport) shutdown() {
	t.mu.Lock()
	t.closed = true
	listeners := keys(t.listeners)
	t.mu.Unlock()
	t.cancel(rendezvous.ErrClosing)
	for _, l := range listeners {
		_ = l.Close()
		l.served.Wait() // if somebody else closes it
	}
	t.hands.Wait()
	t.mu.Lock()
	links := keys(t.links)
	t.mu.Unlock()
	for _, l := range links {
		l.finish()
	}
	t.closeEndpoints(func(*endpoint) bool { return true })
	t.mu.Lock()
	t.drained = true
	if t.janitor != nil {
		t.janitor.Stop()
	}
	t.mu.Unlock()
	t.tasks.Wait()
}

func keys[K comparable](m map[K]struct{}) []K {
	list := make([]K, 0, len(m))
	for k := range m {
		list = append(list, k)
	}
	return list
}
