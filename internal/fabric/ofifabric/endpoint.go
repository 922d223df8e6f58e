//go:build linux && cgo

package ofifabric

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

type endpoint struct {
	ofi    *ofi.Endpoint
	attr   fabric.Attr
	waiter fabric.Waiter

	// Batches that are not in use. Most calls find one in spare, without taking a lock.
	spare atomic.Pointer[ofi.Batch]
	mu    sync.Mutex
	idle  []*ofi.Batch

	rescue    sync.Mutex // one Rescue at a time; guards the next two
	abandoned bool
	closed    bool // there are no calls to look at

	unlink func() error // calls removeRegion once; nil for other providers
	layout byte         // layout version of the region

	sockets *sockets // nil for providers without any
	ip      bool     // names are IP addresses and ports

	close func() error
}

func newEndpoint(info ofi.Info, delivery bool) (*endpoint, error) {
	provider := providerOf(info)
	named := has(provider, namedRegion)
	if named {
		done, err := roomForRegion()
		if err != nil {
			return nil, err
		}
		defer done()
		if err := holdGuard(); err != nil {
			return nil, err
		}
	}
	o, err := ofi.Open(info, options(provider))
	if err != nil {
		if named {
			err = errors.Join(err, guard.Release())
		}
		return nil, err
	}
	e := &endpoint{ofi: o, attr: attributes(o, provider, delivery), ip: info.HasIP()}
	e.close = sync.OnceValue(e.shut)
	if named {
		e.unlink = sync.OnceValue(e.removeRegion)
		if err := e.secureRegion(); err != nil {
			return nil, errors.Join(err, e.close())
		}
	}
	if o.WaitFD() >= 0 {
		w, err := newWaiter(o)
		if err != nil {
			return nil, errors.Join(err, e.close())
		}
		e.waiter = w
	}
	e.sockets = socketsOf(provider, e.Name())
	return e, nil
}

func attributes(o *ofi.Endpoint, provider string, delivery bool) fabric.Attr {
	info := o.Info()
	protocol, version := info.Protocol()
	return fabric.Attr{
		Provider:         provider,
		Fabric:           info.Fabric(),
		Domain:           info.Domain(),
		Protocol:         protocol,
		ProtocolVersion:  version,
		Library:          ofi.LibraryVersion(),
		InjectSize:       info.InjectSize(),
		MaxMsgSize:       o.MaxSend(),
		MaxRMASize:       info.MaxMsgSize(),
		CQDataSize:       cqDataSize(provider, info.CQDataSize()),
		Order:            order(info.Order()),
		DeliveryComplete: delivery,
		LocalMR:          info.LocalMR(),
		EndpointMR:       info.EndpointMR(),
		MRMode:           info.MRMode(),
		TxDepth:          o.TxDepth(),
		RxDepth:          o.RxDepth(),
		PerPeer:          has(provider, perPeer),
		SameHost:         has(provider, sameHost),
		OneMapping:       has(provider, oneMapping),
		Forgets:          has(provider, forgets),
		Ticks:            has(provider, looksAnyway),
	}
}

// cqDataSize returns how many bytes of completion data writes carry if the endpoint reports size.
func cqDataSize(provider string, size int) int {
	if has(provider, noWriteData) {
		return 0
	}
	return size
}

func order(o ofi.Order) (set fabric.Order) {
	if o&ofi.OrderSendAfterSend != 0 {
		set |= fabric.SendAfterSend
	}
	if o&ofi.OrderSendAfterWrite != 0 {
		set |= fabric.SendAfterWrite
	}
	if o&ofi.OrderWriteAfterWrite != 0 {
		set |= fabric.WriteAfterWrite
	}
	return set
}

func (e *endpoint) Attr() fabric.Attr { return e.attr }

func (e *endpoint) Name() []byte { return e.ofi.Name() }

func (e *endpoint) NameIP(name []byte) (netip.Addr, error) {
	if !e.ip {
		return netip.Addr{}, nil
	}
	addr, ok := addrOf(name)
	if !ok {
		return netip.Addr{}, fmt.Errorf("no IP address and port: %x", name)
	}
	return addr.Addr(), nil
}

// resolveTime is how long the verbs provider itself waits for an address, VERBS_RESOLVE_TIMEOUT.
const resolveTime = 2 * time.Second

func (e *endpoint) Insert(name []byte) (fabric.Addr, error) {
	if has(e.attr.Provider, namedRegion) {
		if err := e.checkRegion(name); err != nil {
			return 0, err
		}
	}
	if has(e.attr.Provider, resolvesFirst) {
		if err := e.ofi.Resolve(name, resolveTime); err != nil {
			return 0, err
		}
	}
	a, err := e.ofi.Insert(name)
	if err == nil {
		e.sockets.insert(fabric.Addr(a), name)
	}
	return fabric.Addr(a), err
}

// Connected tells the endpoint that connections to peers have come up since Insert: see sockets.
func (e *endpoint) Connected() { e.sockets.connected() }

func (e *endpoint) Remove(a fabric.Addr) error {
	e.sockets.remove(a)
	return e.ofi.Remove(ofi.Addr(a))
}

// Register registers memory. Local memory is not registered if the provider does not ask for it.
func (e *endpoint) Register(mem []byte, access pool.Access) (pool.Region, error) {
	if access == pool.AccessRemoteWrite {
		return region(e.ofi.Register(mem, ofi.AccessRemoteWrite))
	}
	if !e.attr.LocalMR {
		return unregistered{}, nil
	}
	return region(e.ofi.Register(mem, ofi.AccessLocal))
}

// region keeps a nil *ofi.Region from becoming a non-nil interface.
func region(r *ofi.Region, err error) (pool.Region, error) {
	if err != nil {
		return nil, lockedMemory(err)
	}
	return r, nil
}

type unregistered struct{}

func (unregistered) Desc() uintptr { return 0 }
func (unregistered) Key() uint64   { return 0 }
func (unregistered) Base() uint64  { return 0 }
func (unregistered) Close() error  { return nil }

func (e *endpoint) Waiter() fabric.Waiter { return e.waiter }

// Shutdown ends all use of posted memory before Close; see ofi.Endpoint.Shutdown.
func (e *endpoint) Shutdown() error {
	e.sockets.close()
	return e.ofi.Shutdown()
}

// Close may be called again, and then returns the same error.
func (e *endpoint) Close() error { return e.close() }

func (e *endpoint) shut() error {
	e.sockets.close()
	e.rescue.Lock()
	e.closed = true
	abandoned := e.abandoned
	e.rescue.Unlock()
	if abandoned {
		return e.Unlink()
	}
	if w, ok := e.waiter.(*waiter); ok {
		w.close()
	}
	if b := e.spare.Swap(nil); b != nil {
		b.Free()
	}
	for _, b := range e.idle {
		b.Free()
	}
	e.idle = nil
	err := e.ofi.Close()
	if err == nil {
		err = e.Unlink() // the name is gone, but not its guard
	}
	return err
}
