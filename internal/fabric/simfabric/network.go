package simfabric

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// Errors of completions and of posts.
var (
	ErrInjected     = errors.New("simfabric: injected error")
	ErrLost         = errors.New("simfabric: message lost") // in an Event only
	ErrCanceled     = errors.New("simfabric: the peer is gone")
	ErrLocalAccess  = errors.New("simfabric: local buffer is not registered")
	ErrRemoteAccess = errors.New("simfabric: remote access denied")
	ErrTruncated    = fmt.Errorf("simfabric: message truncated: %w", syscall.EMSGSIZE)
	ErrInvalid      = errors.New("simfabric: invalid operation")
	ErrClosed       = errors.New("simfabric: endpoint is closed")
	ErrBusy         = errors.New("simfabric: regions are still open")
)

// Death says what happens to operations towards an endpoint that was killed.
type Death uint8

const (
	// DeathError: they complete with ErrCanceled; where an inject fails, the
	// queue gets an error that belongs to no operation.
	DeathError Death = iota + 1
	// DeathSilent: they never complete.
	DeathSilent
	// DeathRefuse: those in flight complete with ErrCanceled, and posting new
	// ones is refused for ever.
	DeathRefuse
)

// Stats counts what happened on a network since New.
type Stats struct {
	Steps     uint64 // calls of Exchange
	Sends     uint64 // sends and injects delivered
	SendBytes uint64
	Writes    uint64 // RDMA writes delivered
	// WriteBytes is how many bytes they carried.
	WriteBytes uint64
	// SendsWithoutReceive counts sends that had to wait for a receive to be posted: with credits,
	// there are none.
	SendsWithoutReceive uint64
	// CQOverruns counts completions of operations beyond TxDepth + RxDepth in one queue.
	CQOverruns uint64
	Reordered  uint64 // delivered before something that was posted earlier to the same target
	Refused    uint64 // posts refused because of Config.AgainRate or ErrAgain
	Lost       uint64 // messages that were dropped because of Lose
	BadLocal   uint64 // operations on memory that is not registered (any more)
	BadRemote  uint64 // writes that the target refused
	// PeerUnmapped counts calls of Exchange after Remove on endpoints that have a single peer,
	// whose memory they map: with shm such a call would crash.
	PeerUnmapped uint64
	Truncated    uint64 // sends longer than the receive they met
	Failed       uint64 // injected errors
	// Misuse describes the first use of memory against the rules that keep RDMA safe, whether or
	// not the personality minds: an operation on memory that is not registered (any more), or a
	// region closed while an operation posted on it had not been reaped, by an endpoint that was
	// not shut down.
	Misuse string
	// LateWrites counts pieces of writes that arrived where a region had been before it was closed,
	// LateReused those of them that met another region there, and LateUnmapped those that met
	// nothing and were dropped.
	LateWrites, LateReused, LateUnmapped uint64

	InFlight  int // operations on the wire now
	Stuck     int // those of them that do not move until a process is thawed or posts a receive
	Endpoints int // open now
	Regions   int // open now
}

// Network is a simulated fabric. It implements fabric.Fabric; all endpoints
// opened on one Network, with one provider, reach each other.
type Network struct {
	cfg       Config
	providers []Personality

	mu        sync.Mutex
	rng       *rand.Rand
	endpoints map[string]*endpoint // by name, the dead included
	flows     []*flow              // in the order in which they began
	faults    []*Fault             // of Open, and of endpoints yet to be opened
	serial    int                  // of the last endpoint
	stats     Stats
	losses    float64 // see Lose
}

var _ fabric.Fabric = (*Network)(nil)

// New returns a network without endpoints.
func New(cfg Config) *Network {
	n := &Network{
		cfg:       cfg,
		rng:       rand.New(rand.NewPCG(cfg.Seed, 0)),
		endpoints: make(map[string]*endpoint),
	}
	if n.cfg.AgainBurst <= 0 {
		n.cfg.AgainBurst = 3
	}
	for _, p := range append([]Personality{cfg.Personality}, cfg.Others...) {
		n.providers = append(n.providers, p.withDefaults())
	}
	return n
}

// Providers lists the personalities.
func (n *Network) Providers(src netip.Addr) ([]fabric.ProviderInfo, error) {
	var infos []fabric.ProviderInfo
	for i, p := range n.providers {
		info := p.info()
		info.Elsewhere = n.find(p.Provider, "", src) != i
		infos = append(infos, info)
	}
	return infos, nil
}

// find returns the index of the personality to use for src, or of that with the named domain, -1 if
// there is none.
func (n *Network) find(provider, domain string, src netip.Addr) int {
	return slices.IndexFunc(n.providers, func(p Personality) bool {
		if p.Provider != provider || domain != "" {
			return p.Provider == provider && p.Domain == domain
		}
		return p.Source == src || !p.Source.IsValid() || !src.IsValid() || src.IsUnspecified()
	})
}

// missing returns the error for what find did not find.
func (n *Network) missing(provider, domain string) error {
	e := &fabric.DomainError{Provider: provider, Domain: domain}
	for _, p := range n.providers {
		if p.Provider == provider {
			e.Domains = append(e.Domains, p.Domain)
		}
	}
	if domain == "" || len(e.Domains) == 0 {
		return fmt.Errorf("simfabric: %w: %q", fabric.ErrNoProvider, provider)
	}
	return e
}

// Only returns the network as a machine sees it that offers just some providers.
func (n *Network) Only(providers ...string) fabric.Fabric { return &view{n, providers} }

type view struct {
	*Network
	names []string
}

func (v *view) Providers(src netip.Addr) ([]fabric.ProviderInfo, error) {
	infos, err := v.Network.Providers(src)
	return slices.DeleteFunc(infos, func(i fabric.ProviderInfo) bool {
		return !slices.Contains(v.names, i.Name)
	}), err
}

func (v *view) Open(name string, src netip.Addr) (fabric.Endpoint, error) {
	if provider, _ := fabric.Split(name); !slices.Contains(v.names, provider) {
		return nil, fmt.Errorf("simfabric: %w: %q", fabric.ErrNoProvider, provider)
	}
	return v.Network.Open(name, src)
}

// Open opens an endpoint.
func (n *Network) Open(name string, src netip.Addr) (fabric.Endpoint, error) {
	provider, domain := fabric.Split(name)
	i := n.find(provider, domain, src)
	if i < 0 {
		return nil, n.missing(provider, domain)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.fault(n.faults, CallOpen); err != nil {
		return nil, err
	}
	n.serial++
	e := &endpoint{
		net:     n,
		p:       n.providers[i],
		name:    n.providers[i].nameOf(n.serial, src),
		regions: make(map[uint64]*region),
		faults:  slices.Clone(n.faults),
		cut:     make(map[fabric.Addr]bool),
	}
	e.waiter = newWaiter(e)
	n.endpoints[e.name] = e
	n.stats.Endpoints++
	return e, nil
}

// Kill ends the process that owns ep, as far as others can tell. What it had on the wire may still
// arrive. ep reaps nothing any more and can only be closed. To its own process it looks like a
// device that has failed: a goroutine that waits on it is woken.
func (n *Network) Kill(ep fabric.Endpoint, how Death) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.endpoints[string(ep.Name())]
	if e.death != 0 {
		return
	}
	for _, f := range n.flows {
		if f.src == e {
			f.halt()
			for _, x := range f.items { // its memory goes with it
				x.buf = slices.Clone(x.buf)
			}
		}
	}
	n.remove(e, how)
	e.waiter.signal()
}

// Hang makes calls of Exchange on ep hang until Rescue, as in a library that waits for a lock held
// by a dead process.
func (n *Network) Hang(ep fabric.Endpoint) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.endpoints[string(ep.Name())].hung = make(chan struct{})
}

// Stats returns a snapshot.
func (n *Network) Stats() Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.stats
	for _, f := range n.flows {
		s.InFlight += len(f.items)
		for _, x := range f.items {
			if x := x.first(); f.stuck() && !x.paid || x.waits {
				s.Stuck++
			}
		}
	}
	return s
}

// remove takes e off the network.
func (n *Network) remove(e *endpoint, how Death) {
	e.death = how
	e.recvs, e.queue = nil, nil
	n.stats.Endpoints--
	n.flows = slices.DeleteFunc(n.flows, func(f *flow) bool {
		if f.dst != e {
			return false
		}
		for _, x := range f.items {
			if how == DeathSilent {
				f.src.lose(x)
			} else {
				f.src.finish(x, ErrCanceled)
			}
		}
		return true
	})
}

func (n *Network) observe(ev Event) {
	if n.cfg.Observe != nil {
		n.cfg.Observe(ev)
	}
}

// misused notes the first use of memory that breaks the rules.
func (n *Network) misused(format string, args ...any) {
	if n.stats.Misuse == "" {
		n.stats.Misuse = fmt.Sprintf(format, args...) + "\n" + string(debug.Stack())
	}
}

// Lose drops each Send, Inject or WriteData with probability p from now on. A dropped one completes
// all the same.
func (n *Network) Lose(p float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.losses = p
}

// chance reports true with probability p.
func (n *Network) chance(p float64) bool { return p > 0 && n.rng.Float64() < p }
