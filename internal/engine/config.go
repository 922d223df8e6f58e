package engine

import (
	"errors"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/engine/progress"
	"github.com/seed202c38ff/fabricnet/pool"
)

// Config is what an endpoint's owner decides. Zero fields take the defaults.
type Config struct {
	// Budget pays for every byte of memory that the endpoint maps or promises.
	Budget *pool.Budget
	// Window is a conn's receive window for small data, in bytes. New conns get
	// less when the budget runs low.
	Window int
	// Ring is the size of a landing ring, in bytes: a power of two, at least
	// 4 KiB. Less is leased when the budget runs low, down to 64 KiB. The default is
	// DefaultMappedRing for the one peer of an endpoint, if that can map it and the budget is
	// not small.
	Ring int
	// PeerSlots is how many receive slots each peer may have at most.
	PeerSlots int
	// DeadAfter is for how long the fabric may refuse a peer's operations, or
	// complete none of them, before the peer counts as dead.
	DeadAfter time.Duration
	// Spin is how long a waiting goroutine polls before it parks; negative
	// never polls. It is an upper bound: endpoints learn what pays.
	Spin time.Duration
}

// PeerConfig is what the owner of a peer wants to hear of. All functions but Memory are
// called with the endpoint locked: they must neither block nor call into the
// engine. Each may be nil.
type PeerConfig struct {
	// Accept is called for every conn that the peer opens. It returns 0 if it
	// takes the conn, or NoAnswer; a nil Accept refuses all.
	Accept func(c *Conn, listener uint32) framing.ResetCode
	// NoMemory is called for every conn that is refused since the budget has no room
	// for it.
	NoMemory func()
	// Lost is called once, when the peer is lost: its conns have failed, of which cut
	// had not ended.
	Lost func(err error, cut int)
	// Gone is called once after that, when the user has closed the last conn.
	Gone func()
	// Memory maps memory of the peer's process which that calls so: see pool.OpenSlab. It may
	// be called as long as the endpoint is open, without the lock. If it is not nil, the peer
	// gets landing rings that it can map, too.
	Memory func(pool.SharedName) (*pool.Slab, error)
	// Unmapped is why Memory is nil where it could be set.
	Unmapped error
	// Unproven: nobody knows yet whether it reaches this side over the fabric, so it gets
	// no more than the fewest receive slots there can be until it is Attached. Until its
	// path check has gone through, it can open no conns.
	Unproven bool
	// itself: the peer is the endpoint, for a SelfCheck. Nobody else need know.
	itself bool
}

// NoAnswer is what Accept returns where the peer is about to be lost, and will learn
// better from that why its conn is not taken.
const NoAnswer = ^framing.ResetCode(0)

// Defaults of Config, and sizes that peers learn at handshake.
const (
	DefaultWindow = 64 << 10
	DefaultRing   = 1 << 20
	// DefaultMappedRing is more, so that a writer comes to lines of the ring again only
	// once they have left the reader's cache, from which they would be slow to write.
	DefaultMappedRing = 2 << 20
	DefaultPeerSlots  = 64
	DefaultDeadAfter  = 15 * time.Second
	DefaultSpin       = progress.LearntTime // beyond that nothing is learnt

	// EagerPayload is the most payload of one frame, in bytes: larger writes go
	// by RDMA once there is a landing ring.
	EagerPayload = 8 << 10
	eagerFrame   = framing.HeaderSize + EagerPayload

	// chunkSize is the most that one RDMA write carries, and stepSize what a
	// writer copies at a time: the copy, the transfer and the reader's copy are
	// to overlap.
	chunkSize = 256 << 10
	stepSize  = 64 << 10

	// stageChunks is how many steps of staging memory are mapped at a time,
	// stageMax how many at most, stageFew how many while half of the budget is
	// in use, so that all endpoints get some, and landingSlab how many bytes of
	// landing memory, both of huge pages if there are any.
	stageChunks = 32
	stageMax    = 64
	stageFew    = 8
	landingSlab = 2 << 20

	// slotStep is how many receive or send slots are mapped at a time, where peers share them.
	slotStep = 32

	// recallAtOnce is how many peers are asked at a time for receive slots that they do not use.
	recallAtOnce = 2

	// sharedSlots is how many receive slots a peer gets at most where all share a queue:
	// with more, small writes are coalesced less, and cost more (over net 7.1 us of
	// processor time a write with 64, 5.5 with 32).
	sharedSlots = 32

	// lazyRecvs is how many receives may wait to be posted, if those that have used them
	// have slots enough.
	lazyRecvs = 4

	// lendSlab is the size of the slabs that Buffers are cut from, and lendKeep how
	// many are kept for the next ones while an endpoint is busy.
	lendSlab = 4 << 20
	lendKeep = 4

	minWindow = 4 << 10
	// minRing is the least that is leased instead of Config.Ring: smaller ones carry
	// hardly more than frames do.
	minRing = 64 << 10
	// ringsTotal is how many bytes the landing rings of a peer take together, as
	// long as there are few enough of them: what caches hold.
	ringsTotal = 8 << 20
	// maxControl is how many control frames may wait to be sent to a peer, besides
	// some for each stream.
	maxControl = 4096
	// ctlSlots is how many send slots only control frames may use.
	ctlSlots = 4
)

// What Config.Window and Config.Ring may be; more than MaxRing would be shared out
// among a peer's rings, even if there is one only.
const (
	MinWindow = minWindow
	MinRing   = minRing
	MaxRing   = ringsTotal
)

func (c Config) withDefaults() Config {
	if c.Budget == nil {
		c.Budget = pool.NewBudget(pool.DefaultLimit)
	}
	setDefault(&c.Window, DefaultWindow)
	setDefault(&c.Ring, DefaultRing)
	setDefault(&c.PeerSlots, DefaultPeerSlots)
	if c.DeadAfter == 0 {
		c.DeadAfter = DefaultDeadAfter
	}
	if c.Spin == 0 {
		c.Spin = DefaultSpin
	}
	c.PeerSlots = max(c.PeerSlots, framing.MinSlots)
	c.Window = max(c.Window, minWindow)
	return c
}

func setDefault(v *int, d int) {
	if *v == 0 {
		*v = d
	}
}

// Errors that a conn's calls return besides io.EOF, net.ErrClosed,
// os.ErrDeadlineExceeded, syscall.ECONNRESET, EPIPE and ECONNREFUSED.
var (
	// ErrEndpointClosed: the endpoint was closed by its owner.
	ErrEndpointClosed = errors.New("fabric endpoint closed")
	// ErrFull: the receive queue has no room for another peer.
	ErrFull = errors.New("full")
	// ErrMemory: the memory budget has no room.
	ErrMemory = errors.New("memory budget exhausted: raise Transport.MemoryLimit or close conns")
	// ErrStuck: the peer is lost, since nothing that is sent to it completes.
	ErrStuck = errors.New("fabric took or completed no operation")
	// ErrStarved: the peer is lost, since it lives, and grants no receive slots.
	ErrStarved = errors.New("peer has granted no receive slots for data")
	// errProtocol: the peer broke the protocol; it is cut off.
	errProtocol = errors.New("peer broke the protocol")
)
