// Package simfabric is a simulated fabric for tests, within one process and without libfabric. It
// can be as awkward as any real provider: it reorders, delays, refuses and fails operations, and
// offers as little as a test asks for.
//
// Every decision comes from a seed, and things happen only inside calls of Exchange, each of which
// moves the whole network by one step. A test that runs in one goroutine therefore replays exactly.
// Everything may also be used from several goroutines, and inside a testing/synctest bubble.
package simfabric

import (
	"net/netip"
	"strings"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// Personality is what a simulated provider offers; see fabric.Attr for fields
// without a comment.
type Personality struct {
	Provider string // "sim" if empty
	// Domain is "sim" if empty. Personalities of one provider with different
	// domains are devices that reach each other.
	Domain string
	// Source is the device's address. Without it nobody can tell which address the device has, so
	// the first such domain is used.
	Source           netip.Addr
	Protocol         uint32
	ProtocolVersion  uint32
	Library          string
	SameHost         bool
	InjectSize       int
	CQDataSize       int    // under 4, posting a WriteData fails
	MaxMsgSize       uint64 // 0: 1 GiB
	MaxRMASize       uint64 // 0: MaxMsgSize
	Order            fabric.Order
	DeliveryComplete bool
	LocalMR          bool
	VirtAddr         bool // writes use virtual addresses, not offsets
	TxDepth          int  // 0: 256
	RxDepth          int  // 0: 1024
	PerPeer          bool
	Forgets          bool
	Spread           bool // see fabric.ProviderInfo
	NoWait           bool // Waiter returns nil
	// IPNames: the name of an endpoint contains the IP address that it is at.
	IPNames    bool
	EndpointMR bool
	// InsertDelay is how long Insert blocks.
	InsertDelay time.Duration

	// Unflagged: a peer's WriteData produces no RemoteWrite here, since nothing says that the
	// completion is one.
	Unflagged bool
	// WeakCompletion: a Send, Write or WriteData completes when it is posted, since the provider
	// has taken a copy, and nobody hears of a write that the target refuses. Without it, the bytes
	// are read on delivery, so a buffer that is reused before the completion shows at the other
	// end.
	WeakCompletion bool
	// LateWrites: the target of a write is looked up only once, when its first piece arrives. The
	// rest goes to the same place, even if by then the region is closed, the writer's address
	// removed and the memory unmapped: only the end of one of the two endpoints prevents that.
	// Without LateWrites the target is looked up for each piece.
	LateWrites bool
	// Socket is how many bytes an endpoint takes from each other one between two of its calls of
	// Exchange. Anything beyond that neither arrives nor completes, not even with WeakCompletion. 0
	// is no limit, as for devices that work without the process.
	Socket int
}

// Config describes a network.
type Config struct {
	Seed uint64
	// The first provider.
	Personality
	// More providers, in the library's order. Endpoints of different providers
	// do not reach each other.
	Others []Personality

	// Delay is the most steps that an operation may spend on the wire beyond the first. Operations
	// that are on the wire at the same time arrive in any order that the Order bits leave open, so
	// with 0 only operations posted in one call overtake each other. With a delay, writes also land
	// in up to four pieces. If an endpoint is within a host and has no Waiter, nothing to it is
	// delayed beyond its next Exchange: one look after the doorbell finds everything, as in shared
	// memory.
	Delay int
	// Straggle is the probability that an operation may be delayed up to sixteen times as long.
	Straggle float64
	// AgainRate is the probability that posting an operation is refused
	// although there is room; up to AgainBurst more refusals follow, 3 if it is 0.
	AgainRate  float64
	AgainBurst int
	// CompletionReorder: an endpoint's completions are reaped in any order.
	CompletionReorder bool
	// ErrRate is the probability that a Send, Write or WriteData is lost and completes with
	// ErrInjected: at once, or, if there is a Delay and the completion is not a weak one, when it
	// would have arrived. If sends are ordered after writes, the sends that follow a lost write
	// fail, too: by arriving they would say that the write has landed.
	ErrRate float64
	// Observe, if it is not nil, is called for every Event, in the middle of a call on the network
	// or on one of its endpoints. It must not call into the network itself.
	Observe func(Event)
}

// Event is something that a test may want to check when it happens.
type Event struct {
	From, To string // names of endpoints
	Kind     fabric.Kind
	// Err is the error that ErrRate or FailCall gave to an operation or a call (Call is the one
	// passed to FailCall), or ErrLost for a message that Lose has dropped without an error. Addr is
	// what From knows the operation's target by. Key is that of the operation's region at the
	// target, or of a region that was about to be closed.
	Err  error
	Call Call
	Addr fabric.Addr
	// Without an error, Len bytes of a Write or WriteData are about to be put at Remote in the
	// region with Key, that is, into Mem. Mem must not be looked at if Place is Unmapped.
	Key, Remote uint64
	Len         int
	Mem         []byte
	Place       Place
}

// Place is what a write finds where it lands.
type Place uint8

// Without LateWrites, a write always finds Registered.
const (
	Registered Place = iota // the region that it was for
	Kept                    // that region, since closed, and nothing else is registered there
	Reused                  // another region
	Unmapped                // nothing, or nobody knows what: nothing is written
)

func (p Personality) withDefaults() Personality {
	if p.Provider == "" {
		p.Provider = "sim"
	}
	if p.Domain == "" {
		p.Domain = "sim"
	}
	if p.MaxMsgSize == 0 {
		p.MaxMsgSize = 1 << 30
	}
	if p.MaxRMASize == 0 {
		p.MaxRMASize = p.MaxMsgSize
	}
	if p.TxDepth <= 0 {
		p.TxDepth = 256
	}
	if p.RxDepth <= 0 {
		p.RxDepth = 1024
	}
	return p
}

func (p Personality) attr() fabric.Attr {
	return fabric.Attr{
		Provider:         p.Provider,
		Fabric:           "sim",
		Domain:           p.Domain,
		Protocol:         p.Protocol,
		ProtocolVersion:  p.ProtocolVersion,
		Library:          p.Library,
		InjectSize:       p.InjectSize,
		MaxMsgSize:       p.MaxMsgSize,
		MaxRMASize:       p.MaxRMASize,
		CQDataSize:       p.CQDataSize,
		Order:            p.Order,
		DeliveryComplete: p.DeliveryComplete,
		LocalMR:          p.LocalMR,
		EndpointMR:       p.EndpointMR,
		MRMode:           p.mrMode(),
		TxDepth:          p.TxDepth,
		RxDepth:          p.RxDepth,
		PerPeer:          p.PerPeer,
		SameHost:         p.SameHost,
		Forgets:          p.Forgets,
	}
}

func (p Personality) mrMode() string {
	var words []string
	if p.LocalMR {
		words = append(words, "LOCAL")
	}
	if p.VirtAddr {
		words = append(words, "VIRT_ADDR")
	}
	return strings.Join(words, " ")
}

func (p Personality) info() fabric.ProviderInfo {
	var addrs []netip.Addr
	if p.Source.IsValid() {
		addrs = []netip.Addr{p.Source}
	}
	return fabric.ProviderInfo{
		Addrs:           addrs,
		Name:            p.Provider,
		Fabric:          "sim",
		Domain:          p.Domain,
		Protocol:        p.Protocol,
		ProtocolVersion: p.ProtocolVersion,
		Library:         p.Library,
		PerPeer:         p.PerPeer,
		SameHost:        p.SameHost,
		Spread:          p.Spread,
	}
}
