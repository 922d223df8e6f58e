// Package fabric defines the few operations that the engine needs from a fabric: open an endpoint,
// exchange names, register memory, post and reap. Two packages implement it: ofifabric over
// libfabric, and simfabric, a simulated fabric that tests can make as awkward as any real provider.
package fabric

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/seed202c38ff/fabricnet/pool"
)

// Addr identifies a peer's endpoint once it is inserted, as fi_addr_t does.
type Addr uint64

// Kind is the verb of an operation, and of its completion.
type Kind uint8

const (
	// Send is fi_send: Buf must stay untouched until the completion.
	Send Kind = iota + 1
	// Inject is fi_inject: Buf is free again on return, and there is no
	// completion. len(Buf) is at most Attr.InjectSize.
	Inject
	// Recv is fi_recv into Buf.
	Recv
	// Write is fi_write: an RDMA write that the target is not told about.
	Write
	// WriteData is fi_writedata: an RDMA write that also puts Data into the target's completion
	// queue once the bytes are in its memory. As many bytes of Data arrive as both endpoints'
	// Attr.CQDataSize allow.
	WriteData
	// RemoteWrite is the completion that a peer's WriteData produces here.
	RemoteWrite
)

// Op is one operation to post.
type Op struct {
	Kind Kind
	// Deliver requests that the completion mean "in the target's memory" (FI_DELIVERY_COMPLETE),
	// for Write and WriteData.
	Deliver bool
	Tag     uint32  // comes back in the completion
	Data    uint64  // WriteData
	To      Addr    // all kinds but Recv
	Buf     []byte  // must be registered if Attr.LocalMR says so, except for Inject
	Desc    uintptr // Region.Desc of Buf
	Remote  uint64  // Write, WriteData: address in the peer's region
	Key     uint64  // Write, WriteData: the peer's key
}

// Completion is one entry reaped from the completion queue. Completions come
// in any order.
type Completion struct {
	Kind Kind   // of the operation that has ended; 0 for an error that belongs to no operation
	Tag  uint32 // the operation's; meaningless for RemoteWrite and Kind 0
	Len  int    // Recv: bytes received
	Data uint64 // RemoteWrite
	// Err is set if the operation failed; its buffer is free again. It wraps syscall.EMSGSIZE if a
	// message was too long for its Recv.
	Err error
}

// Order is the set of ordering guarantees that an endpoint gives for messages to one peer.
type Order uint8

const (
	// SendAfterSend: sends arrive in the order in which they were posted.
	SendAfterSend Order = 1 << iota
	// SendAfterWrite: a send arrives after the writes posted before it have
	// reached the target's memory.
	SendAfterWrite
	// WriteAfterWrite: writes are placed in the order in which they were posted.
	WriteAfterWrite
)

// String lists the orders by their names in fi_endpoint(3), without FI_ORDER_.
func (o Order) String() string {
	var names []string
	for i, name := range []string{"SAS", "SAW", "WAW"} {
		if o&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

// Attr is what an open endpoint really offers, read back from the provider.
type Attr struct {
	Provider        string // libfabric's name, such as "shm" or "tcp;ofi_rxm"
	Fabric          string
	Domain          string
	Protocol        uint32 // wire protocol and its version: must be equal at both ends
	ProtocolVersion uint32
	Library         string // version of the library, such as "1.17.0"

	InjectSize       int    // largest Inject, 0 if there is none
	MaxMsgSize       uint64 // largest Send
	MaxRMASize       uint64 // largest Write
	CQDataSize       int    // bytes of remote completion data; under 4, no WriteData
	Order            Order
	DeliveryComplete bool // Op.Deliver is honoured
	LocalMR          bool // local buffers must be registered
	// EndpointMR: regions are bound to the endpoint and must be closed before it, so only Close
	// ends the use of posted memory.
	EndpointMR bool
	MRMode     string // everything demanded of registered memory, as names of FI_MR bits
	TxDepth    int    // operations in flight besides receives
	RxDepth    int    // receives that can be posted
	// PerPeer: an endpoint serves only one peer process, since a peer that is killed may leave it
	// unusable (shm).
	PerPeer bool
	// SameHost: it reaches processes of this host only, which map each other's landing rings. Nothing
	// is written over the fabric.
	SameHost bool
	// OneMapping: two endpoints of one process that are each other's peers share one mapping of
	// their memory, which goes away with the first of them (shm).
	OneMapping bool
	// Forgets: once its address is removed, nothing comes of a peer any more: its connection is closed.
	Forgets bool
	// Ticks: something may arrive without waking the Waiter, so the queue must be polled now and
	// then.
	Ticks bool
}

// Endpoint is an open RDM endpoint with its domain, address vector and completion queue. Several
// goroutines may call Exchange at once, and every other method too, but only one goroutine at a
// time may reap, that is, pass a non-empty done.
type Endpoint interface {
	// Register accepts local memory even if Attr.LocalMR does not ask for it, so that tests can
	// check that memory is registered while it is used.
	pool.Registrar
	// Attr never changes.
	Attr() Attr
	// Name is the endpoint's address, for the peer's Insert (fi_getname).
	Name() []byte
	// NameIP returns the IP address in a peer's name, to which Insert, or what is posted to the peer,
	// makes the provider connect or send. It is the zero Addr if the names of this provider contain
	// none, and fails if this one should and does not.
	NameIP(name []byte) (netip.Addr, error)
	// Insert adds a peer's name to the address vector; it may block. Remove
	// takes it out: no operation to it may be posted afterwards.
	Insert(name []byte) (Addr, error)
	Remove(a Addr) error
	// Exchange posts ops in order until the provider's queue is full, then reaps up to len(done)
	// completions, all in one call into the library. If fewer were posted than given and err is
	// nil, try the rest again after some completions. An error belongs to ops[posted], which is not
	// posted, or, if posted == len(ops), to the queue itself. reaped is valid either way.
	Exchange(ops []Op, done []Completion) (posted, reaped int, err error)
	// Waiter returns what blocks until there is something to reap, nil if the provider has nothing
	// to wait on (shm).
	Waiter() Waiter
	// Shutdown ends all use of posted memory: regions can be closed and memory
	// unmapped afterwards, even if operations have not completed. Only Close
	// may follow. With Attr.EndpointMR it does nothing.
	Shutdown() error
	// Close ends the endpoint and everything it owns. No other call may be
	// running; regions must have been closed before.
	Close() error
}

// Rescuer is an Endpoint whose Exchange can hang in the library after its peer has died, or while
// its peer is stopped.
type Rescuer interface {
	// Rescue looks for calls of Exchange that hang. If there are any, it gets their goroutines out
	// and abandons the endpoint: those calls and all later ones fail with ErrAbandoned, Shutdown
	// and Close return at once, and posted memory is not touched any more. What the library holds
	// for the endpoint is never given back. Rescue reports whether the endpoint is abandoned. It
	// returns at once if no call is in progress. If one hangs, it takes about as long as a call
	// must run to count as hung.
	Rescue() bool
}

// Waiter is the wait object of an endpoint's completion queue, with a bell for each of two goroutines.
type Waiter interface {
	// TryWait reports whether it is safe to sleep: nothing that comes from now on is missed (fi_trywait(3)).
	// If not, there is something to reap, or to be done by a call that reaps.
	TryWait() (safe bool, err error)
	// Bell rings when there may be something to reap.
	Bell() Bell
	// Watcher is a second bell, which rings as well for whatever comes while Watch is on.
	Watcher() Bell
	// Watch reports whether there may be something already when it is put on.
	Watch(on bool) (ready bool)
}

// Bell is what one goroutine at a time sleeps on.
type Bell interface {
	// Sleep calls ready, at once and each time the bell has rung, until it returns true. A ring before the
	// first of these calls may be lost. Wake ends Sleep, perhaps without such a call, or the next one; the
	// end of the bell does so with an error.
	Sleep(ready func() bool) error
	Wake()
}

// ProviderInfo describes one domain of a provider that this machine offers, before an endpoint on
// it is opened.
type ProviderInfo struct {
	Name            string
	Fabric          string
	Domain          string
	Elsewhere       bool // another domain is nearer to src, or none is at it: to be used only if it is named
	Protocol        uint32
	ProtocolVersion uint32
	Library         string
	Settings        string       // what both ends must have set alike, "NAME=value", separated by spaces
	PerPeer         bool         // see Attr.PerPeer
	SameHost        bool         // reaches processes on this host only
	Spread          bool         // looking at an endpoint's queue takes longer the more peers it has
	Fragile         bool         // opening an endpoint may end the process: not to be tried without need
	WarmsUp         bool         // an endpoint's first messages take long
	Addrs           []netip.Addr // IP addresses of the domain, if it has any
}

// Fabric opens endpoints.
type Fabric interface {
	// Providers lists what can be opened for a control connection whose
	// local address is src, in the library's own order, each domain of each
	// provider once.
	Providers(src netip.Addr) ([]ProviderInfo, error)
	// Open opens an endpoint of the named provider. The name may include a domain: see Split. If it
	// does not, and the provider has devices, the endpoint is on the device that has the address
	// src. The endpoint is enabled and has no receives posted. Open may block for tens of
	// milliseconds.
	Open(provider string, src netip.Addr) (Endpoint, error)
}

// Supporter is a Fabric that may turn out not to be available at all.
type Supporter interface {
	// Supported returns nil, or an ErrUnsupported that says why. Only the first call may take long.
	Supported() error
}

// Sparer is a Fabric whose endpoints use resources that may be scarce.
type Sparer interface {
	// Spare reports whether these resources are plentiful, so that an endpoint may be opened that
	// nobody needs yet.
	Spare() bool
}

// domainMark separates the name of a provider from that of a domain. Domains are named after
// network interfaces and devices, and Linux allows no slash in the names of either.
const domainMark = "/"

// Split splits what names a provider, such as "verbs;ofi_rxm", or a provider and one of its
// domains, such as "verbs;ofi_rxm/mlx5_0".
func Split(name string) (provider, domain string) {
	provider, domain, _ = strings.Cut(name, domainMark)
	return provider, domain
}

// Join is the inverse of Split. domain may be empty.
func Join(provider, domain string) string {
	if domain == "" {
		return provider
	}
	return provider + domainMark + domain
}

// DomainError is an ErrNoProvider: the provider is available, but the domain is not.
type DomainError struct {
	Provider, Domain string
	Domains          []string // those that are available
}

func (e *DomainError) Error() string {
	return fmt.Sprintf("provider %s has no domain %s; there are %s", e.Provider, e.Domain, strings.Join(e.Domains, ", "))
}

func (e *DomainError) Unwrap() error { return ErrNoProvider }

type unsupported struct{}

func (unsupported) Error() string        { return "no libfabric" }
func (unsupported) Is(target error) bool { return target == errors.ErrUnsupported }

// Errors that implementations wrap.
var (
	// ErrNoProvider: this machine does not offer the provider.
	ErrNoProvider = errors.New("provider not available")
	// ErrUnsupported: there is no libfabric, in this build or on this machine.
	ErrUnsupported error = unsupported{}
	// ErrAbandoned: see Rescuer.
	ErrAbandoned = errors.New("endpoint abandoned: a call hung in the library")
)
