//go:build linux && cgo

package ofifabric

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// New returns the fabric that libfabric offers on this machine. It is safe
// for concurrent use.
func New() fabric.Fabric { return ofiFabric{} }

type ofiFabric struct{}

// Providers lists the providers that have an endpoint for src, each once. An
// invalid or unspecified src matches every device.
func (ofiFabric) Providers(src netip.Addr) ([]fabric.ProviderInfo, error) {
	list, err := ofi.GetInfo(ofi.Hints{})
	if errors.Is(err, syscall.ENODATA) {
		return nil, fmt.Errorf("libfabric %s: %w", ofi.LibraryVersion(), fabric.ErrNoProvider)
	}
	if err != nil {
		return nil, err
	}
	defer list.Free()
	var infos []fabric.ProviderInfo
	seen := make(map[string]bool)
	for info := range list.All() {
		name := info.Provider()
		if seen[name] || !livesOn(info, src) {
			continue
		}
		seen[name] = true
		protocol, version := info.Protocol()
		infos = append(infos, fabric.ProviderInfo{
			Name:            name,
			Fabric:          info.Fabric(),
			Domain:          info.Domain(),
			Protocol:        protocol,
			ProtocolVersion: version,
			Library:         ofi.LibraryVersion(),
			PerPeer:         name == shm,
			SameHost:        name == shm,
		})
	}
	return infos, nil
}

// livesOn reports whether an endpoint can be bound to src. Providers that are
// not addressed by IP, or do not say which they would use, are taken to.
func livesOn(info ofi.Info, src netip.Addr) bool {
	bound := info.Source()
	return anywhere(src) || !bound.IsValid() || bound == src.Unmap().WithZone("")
}

func anywhere(src netip.Addr) bool { return !src.IsValid() || src.IsUnspecified() }

// Open opens an endpoint with the most that the provider offers. It wraps
// fabric.ErrNoProvider if the machine does not have the provider, or not on
// src.
func (ofiFabric) Open(provider string, src netip.Addr) (fabric.Endpoint, error) {
	ep, err := open(provider, src)
	if err != nil {
		return nil, explain(provider, src, err)
	}
	return ep, nil
}

func open(provider string, src netip.Addr) (*endpoint, error) {
	hints, err := probe(provider, src)
	if err != nil {
		return nil, err
	}
	list, info, hints, err := best(hints)
	if err != nil {
		return nil, err
	}
	defer list.Free()
	return newEndpoint(info, offersDelivery(hints))
}

// find returns the provider's first entry. libfabric matches parts of names
// too: "net" also finds "net;ofi_rxm".
func find(list *ofi.InfoList, provider string) (ofi.Info, bool) {
	for info := range list.All() {
		if info.Provider() == provider {
			return info, true
		}
	}
	return ofi.Info{}, false
}

// probe finds out whether the provider is there at all, and whether it is to
// be bound to src.
func probe(provider string, src netip.Addr) (ofi.Hints, error) {
	hints := ofi.Hints{Provider: provider}
	if provider == shm {
		hints.Source = regionBase()
	}
	list, err := ofi.GetInfo(hints)
	if errors.Is(err, syscall.ENODATA) {
		err = fmt.Errorf("%w: %w", fabric.ErrNoProvider, err)
	}
	if err != nil {
		return hints, err
	}
	defer list.Free()
	for info := range list.All() {
		if info.Provider() != provider { // see find
			continue
		}
		if !info.HasIP() || anywhere(src) {
			return hints, nil
		}
		if livesOn(info, src) {
			hints.Source = src.Unmap().String()
			return hints, nil
		}
	}
	return hints, fabric.ErrNoProvider
}

// best asks for completion data and for message orders, then for less and
// less: a provider that lacks what is asked for does not offer itself at all.
// info is valid until the list is freed.
func best(hints ofi.Hints) (list *ofi.InfoList, info ofi.Info, asked ofi.Hints, err error) {
	const all = ofi.OrderSendAfterSend | ofi.OrderSendAfterWrite | ofi.OrderWriteAfterWrite
	for _, size := range []int{4, 0} {
		for _, order := range []ofi.Order{all, ofi.OrderSendAfterSend, 0} {
			hints.CQDataSize, hints.Order = size, order
			if list, err = ofi.GetInfo(hints); err != nil {
				continue
			}
			if info, ok := find(list, hints.Provider); ok {
				return list, info, hints, nil
			}
			list.Free()
			err = fabric.ErrNoProvider
		}
	}
	return nil, info, hints, err
}

// offersDelivery asks again with FI_DELIVERY_COMPLETE, which no attribute
// tells of.
func offersDelivery(hints ofi.Hints) bool {
	hints.DeliveryComplete = true
	list, err := ofi.GetInfo(hints)
	if err != nil {
		return false
	}
	defer list.Free()
	_, ok := find(list, hints.Provider)
	return ok
}
