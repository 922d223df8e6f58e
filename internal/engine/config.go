package engine

import (
	"cmp"
	"errors"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/engine/progress"
	"github.com/seed202c38ff/fabricnet/pool"
)

// Config is what the owner of an endpoint decides. Zero fields take the defaults.
type Config struct {
	// Budget pays for every byte of memory that the endpoint maps or promises.
	Budget *pool.Budget
	// Window is a conn's receive window for small data at first, in bytes. New conns get
	// less when the budget runs low.
	Window int
	// MaxWindow is how many bytes of small data a conn holds at most that nobody reads: up to
	// that, windows grow while memory is plentiful. The default is Window, or
	// DefaultMaxWindow if Window is not set.
	MaxWindow int
	// Ring is how large a landing ring gets, in bytes: a power of two, at least
	// 4 KiB. Rings begin with firstRing and grow: see grow.go. Less is leased when the budget
	// runs low, down to 64 KiB. The default is DefaultRing, or DefaultMappedRing if peers map the
	// rings and the budget is at least 64 times as large.
	Ring int
	// PeerSlots is how many receive slots each peer gets. The default is DefaultPeerSlots, or SharedSlots where
	// peers share a queue.
	PeerSlots int
	// DeadAfter is how long the fabric may refuse a peer's operations, or
	// complete none of them, before the peer counts as dead.
	DeadAfter time.Duration
	// Spin is how long a waiting goroutine polls at most before it parks: up to that,
	// endpoints learn what pays. If it is negative, none polls.
	Spin time.Duration

	first int // how large a ring is at first: firstRing, except in tests
}

// PeerConfig is what the owner of a peer decides, and wants to hear of. All functions but
// Memory are called with the endpoint locked: they must neither block nor call into the
// engine. Each may be nil.
type PeerConfig struct {
	// Accept is called for every conn that the peer opens. If it takes the conn, it returns
	// the conn's port, which is not 0 and which the peer is told; it may call Conn.OnGone. If
	// not, it returns the code to refuse the conn with, or NoAnswer. A nil Accept refuses all.
	Accept func(c *Conn, listener uint32) (port uint16, code framing.ResetCode)
	// NoMemory is called for every conn that is refused because the budget has no room
	// for it.
	NoMemory func()
	// Idle is called whenever the peer's last conn has gone: it is closed on both sides, or refused.
	Idle func()
	// Lost is called once, when the peer is lost and its conns have failed. cut is how many
	// of these were neither closed on this side nor at the end of what the peer sent.
	Lost func(err error, cut int)
	// Gone is called once after that, when the user has closed the last conn.
	Gone func()
	// Memory maps the memory of the peer's process that goes by the given name there: see
	// pool.OpenSlab. It may be called as long as the endpoint is open, and is called without
	// the lock. Needed where Attr.SameHost says so.
	Memory func(pool.SharedName) (*pool.Slab, error)
	// Unproven means that nobody knows yet whether the peer reaches this side over the
	// fabric. Until Peer.Attached is called, it gets no more receive slots than at first. Until its path
	// check has passed, it can open no conns.
	Unproven bool
	// itself means that the peer is this endpoint, for a SelfCheck. Statistics leave it out.
	itself bool
}

// NoAnswer is what Accept returns if the peer is about to be lost: that will tell the peer
// better than an answer why its conn is not taken.
const NoAnswer = ^framing.ResetCode(0)

// Defaults of Config, and sizes that peers learn at handshake.
const (
	DefaultWindow    = 64 << 10
	DefaultMaxWindow = 2 << 20
	DefaultRing      = 1 << 20
	// DefaultMappedRing is larger, so that by the time a writer comes back to a line of the
	// ring, the line has left the reader's cache. As long as it is there, writing to it is slow.
	DefaultMappedRing = 2 << 20
	DefaultPeerSlots  = 64
	SharedSlots       = 32 // with half as many, 100 conns of a pair lost a fifth of their rate with 64 KiB
	DefaultDeadAfter  = 15 * time.Second
	DefaultSpin       = progress.LearntTime // the longest of which anything is learnt

	// EagerPayload is the most payload of one frame, in bytes: larger writes go
	// by RDMA once there is a landing ring.
	EagerPayload = 8 << 10
	eagerFrame   = framing.HeaderSize + EagerPayload

	// chunkSize is the most that one RDMA write carries, in bytes, and stepSize is what a
	// writer copies at a time, so that the copy, the transfer and the reader's copy can
	// overlap.
	chunkSize = 256 << 10
	stepSize  = 64 << 10

	// stageChunks is how many staging chunks, of stepSize each, are mapped at a time, and
	// stageMax how many there may be, besides those that make up for what dead peers hold.
	// If stageChunks more would leave less than half of the budget, only stageFew are mapped,
	// so that all endpoints get some. landingSlab is how many bytes of landing memory are
	// mapped at a time. Both kinds of memory consist of huge pages if there are any.
	stageChunks = 32
	stageMax    = 64
	stageFew    = 8
	landingSlab = 2 << 20

	// lazyRecvs is how many receives may wait to be posted, if the peers that have used them
	// have enough slots left.
	lazyRecvs = 4

	// lendSlab is the size of the slabs that Buffers are cut from, in bytes, and lendKeep is
	// how many empty ones are kept for later Buffers while an endpoint is busy.
	lendSlab = 4 << 20
	lendKeep = 4

	// MinWindow is the least that Config.Window may be, in bytes.
	MinWindow = 4 << 10
	// firstRing is how large a ring is at first, in bytes, unless less is leased. It stays in a
	// processor's own cache, which round trips of 16 KiB gain a fifth by.
	firstRing = 256 << 10
	// MinRing is the least that is leased instead of Config.Ring, and that users may ask for, in bytes: smaller
	// rings carry hardly more than frames do.
	MinRing = 64 << 10
	// ringsTotal is how many bytes the landing rings of a peer take together at most, as
	// long as there are few enough of them: it is what caches hold.
	ringsTotal = 8 << 20
	// MaxRing is the most that Config.Ring may be. More would be cut down to ringsTotal, even if it is the only
	// ring.
	MaxRing = ringsTotal
	// maxControl is how many control frames may wait to be sent to a peer, besides
	// eight for each stream.
	maxControl = 4096
)

func (c Config) withDefaults() Config {
	if c.Budget == nil {
		c.Budget = pool.NewBudget(pool.DefaultLimit)
	}
	if c.Window == 0 {
		c.Window = DefaultWindow
		c.MaxWindow = cmp.Or(c.MaxWindow, DefaultMaxWindow)
	}
	c.Ring = cmp.Or(c.Ring, DefaultRing)
	c.first = cmp.Or(c.first, firstRing)
	c.DeadAfter = cmp.Or(c.DeadAfter, DefaultDeadAfter)
	c.Spin = cmp.Or(c.Spin, DefaultSpin)
	c.Window = max(c.Window, MinWindow)
	c.MaxWindow = max(c.MaxWindow, c.Window)
	return c
}

// Errors that a conn's calls return besides io.EOF, net.ErrClosed,
// os.ErrDeadlineExceeded, syscall.ECONNRESET, EPIPE and ECONNREFUSED.
var (
	// ErrEndpointClosed means that the owner has closed the endpoint.
	ErrEndpointClosed = errors.New("fabric endpoint closed")
	// ErrFull means that the receive queue has no room for another peer.
	ErrFull = errors.New("full")
	// ErrMemory means that the memory budget has no room.
	ErrMemory = errors.New("memory budget exhausted: raise Transport.MemoryLimit or close conns")
	// ErrStuck means that the peer is lost because nothing that is sent to it completes.
	ErrStuck = errors.New("fabric took or completed no operation")
	// ErrStarved means that the peer is lost because it grants no receive slots for data,
	// although it lives.
	ErrStarved = errors.New("peer has granted no receive slots for data")
	// errProtocol means that the peer broke the protocol, and is cut off.
	errProtocol = errors.New("peer broke the protocol")
)
