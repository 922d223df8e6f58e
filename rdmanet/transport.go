package rdmanet

import (
	"context"
	"crypto/rand"
	"math"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/bootstrap"
	"github.com/seed202c38ff/fabricnet/internal/engine"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/ofifabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// Defaults of Transport.
const (
	// DefaultMemoryLimit is 256 MiB, in bytes.
	DefaultMemoryLimit       = pool.DefaultLimit
	DefaultHeartbeatInterval = bootstrap.DefaultHeartbeat // 5 seconds
	DefaultDeadAfter         = bootstrap.DefaultDeadAfter // 15 seconds
	DefaultIdlePeerTimeout   = 30 * time.Second
	// DefaultMaxShmPeers is 64: as many endpoints as half of DefaultMemoryLimit holds.
	DefaultMaxShmPeers = DefaultMemoryLimit / 2 / shmPeerMemory
	// DefaultReceiveWindow is 64 KiB, in bytes: the window of a new conn, which grows.
	DefaultReceiveWindow = engine.DefaultWindow
	// DefaultLandingRing is 1 MiB, in bytes, and DefaultMappedRing, for rings that both
	// processes map, is 2 MiB.
	DefaultLandingRing = engine.DefaultRing
	DefaultMappedRing  = engine.DefaultMappedRing
	DefaultPollTime    = engine.DefaultSpin // 500 microseconds
	// DefaultFailureMemory is how long what did not work is remembered at most.
	DefaultFailureMemory = 5 * time.Minute
)

// Transport holds what dialers and listeners share: fabric endpoints, the peers that were met,
// and the memory budget. The zero value is ready to use, and a nil *Transport stands for
// DefaultTransport. Its fields must not be changed after first use, and it must not be copied.
// All methods may be called concurrently. Values that are out of range make Dial and Listen
// fail with ErrConfig.
type Transport struct {
	// MemoryLimit bounds the memory for data, in bytes: what is mapped for endpoints and
	// landing rings, and what conns are promised as receive window. It is at least 64 KiB; an
	// endpoint takes about 2 MiB. 0 means the environment variable RDMANET_MEMORY_LIMIT, in
	// bytes or with a unit, such as 64MiB, or DefaultMemoryLimit if that is not set.
	MemoryLimit int64
	// HeartbeatInterval is the longest time between the signs of life that peers are sent,
	// from a millisecond to less than DeadAfter. 0 means DefaultHeartbeatInterval, or a third
	// of DeadAfter if that is less. Peers whose own DeadAfter asks for more get more.
	HeartbeatInterval time.Duration
	// DeadAfter is how long a peer may be silent before its conns fail with ECONNRESET, from
	// 100 milliseconds to 24 hours; 0 means DefaultDeadAfter. Peers are told, and send signs
	// of life accordingly.
	DeadAfter time.Duration
	// IdlePeerTimeout is how long a peer that was dialed is kept without conns, at least a
	// millisecond; 0 means DefaultIdlePeerTimeout. The peer is closed earlier if another one
	// needs its receive slots, its memory or its place among MaxShmPeers. If IdlePeerTimeout is negative,
	// such peers are kept until CloseIdle or Close.
	IdlePeerTimeout time.Duration
	// MaxShmPeers bounds how many peer processes can be reached through shared memory at a
	// time, whatever the number of their listeners. Each takes 16 MiB of /dev/shm in either
	// process. So does an endpoint for the next one, which is opened only while less than a
	// quarter of MemoryLimit is in use and at least half of /dev/shm is free. Further peers take
	// the place of idle ones: of dialed ones without conns, and of accepted ones that have had
	// none for a second. If there are none, they get the next provider that both sides name, or
	// ErrTooManyShmPeers. 0 means one for each 4 MiB of MemoryLimit, which is
	// DefaultMaxShmPeers with the default limit. To do without shared memory, leave shm out of
	// Providers.
	MaxShmPeers int
	// ReceiveWindow is how much small data a conn holds that has not been read, in bytes, from
	// 4 KiB to 16 MiB. 0 means DefaultReceiveWindow at first, and up to 2 MiB while nobody
	// reads, as long as less than half of MemoryLimit is in use and the windows of all conns
	// with the same peer take less than an eighth of it. When the data has been read, the conn
	// holds as much as at first again. New conns get less when the memory runs low.
	ReceiveWindow int
	// LandingRing is how much large data may be on its way to a conn or wait there to be read,
	// in bytes: a power of two from 64 KiB to 8 MiB. 0 means DefaultLandingRing or, over
	// shared memory, DefaultMappedRing if MemoryLimit is at least 128 MiB. A conn has a ring of
	// 256 KiB at first, if LandingRing is more, and gets a larger one once its writer finds that
	// full, or writes 64 KiB at a time, as long as less than half of MemoryLimit is in use.
	// LandingRing bounds a conn's rate to as much for each round trip of the network. Conns have
	// a ring only while they carry large data; the rings of one peer share 8 MiB, and get smaller
	// when the memory runs low.
	LandingRing int
	// PollTime is how long a call that waits polls, at most, before it sleeps: from a
	// microsecond to a second. Polling takes a processor and saves the time of waking up. Each
	// endpoint learns whether that pays, and polls for PollTime, for 200 us if that ends most waits, or not
	// at all: see metrics.Polling. Above DefaultPollTime nothing is
	// learnt: calls always poll. 0 means the environment variable RDMANET_POLL_TIME, such as
	// 50us or off, or DefaultPollTime if that is not set. If PollTime is negative, calls do
	// not poll.
	PollTime time.Duration
	// FailureMemory is how long, at most, what did not work is passed over without another
	// try, by dials that could have shared the control connection: a listener that fails says
	// nothing of others. A provider that delivers wrong contents is passed over for all of
	// that time; one that is silent, for five seconds at first and twice as long each further
	// time. Dialers with FallbackTCP pass over an address where something other than rdmanet
	// listens for half a minute at first, and twice as long each further time. A provider is
	// tried all the same if there is no other and no fallback. FailureMemory is at least a
	// millisecond; 0 means DefaultFailureMemory. If it is negative, nothing is remembered.
	FailureMemory time.Duration

	fabric fabric.Fabric // nil: libfabric; set by tests
	auto   []string      // nil: automatic; set by tests
	// offer is set by tests, to change what is offered in a hello. nil: as it is.
	offer func(*framing.Hello)

	once    sync.Once
	invalid error // what is wrong with the fields
	limit   int64 // limit and poll are MemoryLimit and PollTime, or what the environment says
	poll    time.Duration
	budget  *pool.Budget
	process [16]byte
	host    [16]byte
	hostErr error           // why host is 0
	netns   netns           // of the threads to which no goroutine is locked
	ctx     context.Context // ends with Close
	cancel  context.CancelCauseFunc

	counters  counters
	schedule  bootstrap.Schedule // of the sessions
	links     links
	endpoints endpoints
	events    eventQueues
	garbage   limiter // of events about conns that were dropped

	closing sync.Once
	ports   portSet // of accepted conns
	hands   tally   // handshakes of both sides
	tasks   tally   // goroutines that take links apart

	// mu is a leaf: nothing of the engine or of bootstrap is called with it
	// held, since it is taken within their callbacks.
	mu        sync.Mutex
	closed    bool
	drained   bool // no more tasks
	lastID    uint32
	listeners map[*listener]struct{}
	providers map[netip.Addr]providerList
	searches  map[question]*search
	live      map[*conn]struct{} // until Close
	failures  failures           // has a lock of its own
}

// DefaultTransport is used by dialers and listeners that have no Transport of their own. It
// should not be closed. A program that has used shared memory and is about to end may call
// its CloseIdle: see there.
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
	t.invalid = t.configure()
	t.budget = pool.NewBudget(t.limit)
	rand.Read(t.process[:]) // never fails
	t.host, t.hostErr = bootstrap.HostID()
	t.netns = ownNetns()
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	t.listeners = make(map[*listener]struct{})
	t.providers = make(map[netip.Addr]providerList)
	t.searches = make(map[question]*search)
	t.links.init(t)
	t.endpoints.init(t)
	t.counters.init()
	t.live = make(map[*conn]struct{})
}

func orDefault[T int | int64 | time.Duration](v, d T) T {
	if v == 0 {
		return d
	}
	return v
}

// idleTimeout returns how long idle peers are kept.
func (t *Transport) idleTimeout() time.Duration {
	if t.IdlePeerTimeout < 0 {
		return math.MaxInt64
	}
	return orDefault(t.IdlePeerTimeout, DefaultIdlePeerTimeout)
}

func (t *Transport) engineConfig() engine.Config {
	return engine.Config{
		Budget:    t.budget,
		Window:    t.ReceiveWindow,
		Ring:      t.LandingRing,
		DeadAfter: orDefault(t.DeadAfter, DefaultDeadAfter),
		Spin:      t.poll,
	}
}

// heartbeat returns the interval in force: a short DeadAfter shortens the default.
func (t *Transport) heartbeat() time.Duration {
	dead := orDefault(t.DeadAfter, DefaultDeadAfter)
	return orDefault(t.HeartbeatInterval, min(DefaultHeartbeatInterval, dead/3))
}

// begin counts a handshake, until end is called. It fails if the Transport is closed.
func (t *Transport) begin() (end func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, net.ErrClosed
	}
	t.hands.add()
	return t.hands.done, nil
}

// spawn runs f in a goroutine that Close waits for. It may be called from callbacks. After Close
// it does nothing, and reports that: there is most often nothing left to do.
func (t *Transport) spawn(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.drained {
		t.tasks.start(f)
	}
	return !t.drained
}

// CloseIdle closes the peers that were dialed and that no conn uses, and the endpoints without
// peers. Accepted peers stay for as long as the dialing side keeps them.
//
// Over shared memory an endpoint may be open for the next peer, for half a minute after Listen,
// a dial or the last peer. A process that ends meanwhile without CloseIdle or Close leaves that
// endpoint's 16 MiB in /dev/shm, until its peer notices or another process of the same user
// begins to use shared memory.
func (t *Transport) CloseIdle() {
	t = transportOr(t)
	t.links.whileEnding(func(l *link) bool { return !l.accepted() }, func() bool {
		t.links.sweep(0)
		return true
	})
	t.endpoints.closeIdle()
}

// Close closes all listeners, ends all handshakes, fails all conns that are still open, says
// goodbye to the peers, and frees all endpoints and their memory. When it returns, no goroutine,
// file or shared memory of the Transport is left, except for Buffers that were not released. Conns
// that use plain TCP are not the Transport's, and stay open. Conns that it has failed count in MemoryStats.Used until they are
// closed. The Transport cannot be used again: Dial and Listen fail with net.ErrClosed. The
// error is always nil.
//
// Loggers have a second to log what has happened. What they have not logged by then is dropped.
// The goroutine of a logger that blocks ends when the logger returns.
func (t *Transport) Close() error {
	t = transportOr(t)
	t.closing.Do(t.shutdown)
	return nil
}

// shutdown ends, in this order, listeners with their handshakes (listener.go), links (links.go,
// link.go), each with its session (bootstrap/session.go), and endpoints (endpoints.go), each with
// its memory (engine/endpoint.go, engine/shutdown.go).
func (t *Transport) shutdown() {
	t.mu.Lock()
	t.closed = true
	listeners := keys(t.listeners)
	t.mu.Unlock()
	t.cancel(bootstrap.ErrClosing)
	for _, l := range listeners {
		_ = l.close()
		l.served.Wait() // if somebody else closes it
	}
	t.hands.wait()
	links := t.links.list()
	for _, l := range links {
		l.quit()
	}
	for _, l := range links {
		l.finish()
	}
	t.links.end()
	t.endpoints.closeIdle() // which are all
	t.mu.Lock()
	t.drained = true
	t.mu.Unlock()
	t.tasks.wait()
	t.events.close()
}

func keys[K comparable](m map[K]struct{}) []K {
	list := make([]K, 0, len(m))
	for k := range m {
		list = append(list, k)
	}
	return list
}
