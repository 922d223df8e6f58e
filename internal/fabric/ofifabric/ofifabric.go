//go:build linux && cgo

package ofifabric

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// New returns the fabric that libfabric offers on this machine. It is safe
// for concurrent use.
func New() fabric.Fabric { return ofiFabric{} }

type ofiFabric struct{}

// Providers lists what is available, each domain of each provider once.
func (ofiFabric) Providers(src netip.Addr) ([]fabric.ProviderInfo, error) {
	list, err := getInfo(ofi.Hints{})
	if errors.Is(err, syscall.ENODATA) {
		return nil, fmt.Errorf("libfabric %s: %w", ofi.LibraryVersion(), fabric.ErrNoProvider)
	}
	if err != nil {
		return nil, err
	}
	defer list.Free()
	byName := make(map[string][]ofi.Info)
	for info := range list.All() {
		byName[providerOf(info)] = append(byName[providerOf(info)], info)
	}
	near := nearby(src)
	var infos []fabric.ProviderInfo
	seen := make(map[string]bool)
	for info := range list.All() {
		name, domain := providerOf(info), info.Domain()
		if seen[fabric.Join(name, domain)] || unmonitored(name) {
			continue
		}
		seen[fabric.Join(name, domain)] = true
		entries := byName[name]
		at := places(entries)
		p := providerInfo(entries[pick(at, domain, src, near)])
		p.Addrs = addresses(at, domain)
		used := pick(at, "", src, near)
		p.Elsewhere = used < 0 || at[used].domain != domain
		infos = append(infos, p)
	}
	return infos, nil
}

func providerInfo(info ofi.Info) fabric.ProviderInfo {
	protocol, version := info.Protocol()
	name := providerOf(info)
	return fabric.ProviderInfo{
		Name:            name,
		Fabric:          info.Fabric(),
		Domain:          info.Domain(),
		Protocol:        protocol,
		ProtocolVersion: version,
		Library:         build(name),
		Settings:        alikeOf(name),
		PerPeer:         has(name, perPeer),
		SameHost:        has(name, sameHost),
		Spread:          has(name, looksAtAll),
		Fragile:         has(name, ifNamed),
		WarmsUp:         has(name, slowAtFirst),
	}
}

// build identifies a build of the library. Processes can share memory only if they lay it out
// alike. That takes the same version of the library, since layouts change even between 2.5.0 and
// 2.5.1, and the same architecture, which determines the size of words and the byte order.
func build(provider string) string {
	if has(provider, sameHost) {
		return ofi.LibraryVersion() + " " + runtime.GOARCH
	}
	return ofi.LibraryVersion()
}

// alikeOf returns the setting, a number, that both peers of a provider must have, or "" if there is
// none. It takes the value from the environment, whether we or the user set it, and reads it as
// libfabric does: fi_param_get(3).
func alikeOf(provider string) string {
	q := find(provider, alike)
	if q == nil {
		return ""
	}
	value, set := ofi.Getenv(q.arg)
	if !set {
		return ""
	}
	n, err := strconv.ParseInt(strings.TrimSpace(value), 0, 64)
	if err != nil {
		return q.arg + "=default"
	}
	return q.arg + "=" + strconv.FormatInt(n, 10)
}

// Open opens an endpoint with everything that the provider offers. Its error wraps
// fabric.ErrNoProvider if the machine does not have the provider, or not at src.
func (ofiFabric) Open(name string, src netip.Addr) (fabric.Endpoint, error) {
	provider, domain := fabric.Split(name)
	ep, err := open(provider, domain, src)
	if err != nil {
		return nil, explain(provider, src, err)
	}
	return ep, nil
}

func open(provider, domain string, src netip.Addr) (*endpoint, error) {
	w, err := probe(provider, domain, src)
	if err != nil {
		return nil, err
	}
	list, info, w, err := best(w)
	if err != nil {
		return nil, err
	}
	defer list.Free()
	delivery := offersDelivery(w)
	if deep, info := deeper(w, info, ofi.MaxDepth); deep != nil {
		defer deep.Free()
		if ep, err := newEndpoint(info, delivery); err == nil {
			return ep, nil
		}
	}
	return newEndpoint(info, delivery)
}

// deeper asks for queues of a given depth if the provider's own choice is less. The list is nil if
// there is nothing to gain, or if the provider refuses.
func deeper(w wanted, info ofi.Info, depth int) (list *ofi.InfoList, deep ofi.Info) {
	if !has(w.provider, deepQueues) || min(info.TxSize(), info.RxSize()) >= depth {
		return nil, deep
	}
	w.domain = info.Domain()
	w.TxSize, w.RxSize = max(info.TxSize(), depth), max(info.RxSize(), depth)
	list, err := getInfo(w.Hints)
	if err != nil {
		return nil, deep
	}
	if entries := w.matching(list); len(entries) > 0 {
		return list, entries[0]
	}
	list.Free()
	return nil, deep
}

// wanted is what to open.
type wanted struct {
	ofi.Hints
	provider string
	domain   string // "" for any
	ib       bool   // an entry with an InfiniBand address
}

// matching lists the wanted entries. libfabric also matches parts of providers' names: "net" finds
// "net;ofi_rxm", too.
func (w *wanted) matching(list *ofi.InfoList) (entries []ofi.Info) {
	for info := range list.All() {
		if providerOf(info) == w.provider && info.HasInfiniBand() == w.ib && (w.domain == "" || info.Domain() == w.domain) {
			entries = append(entries, info)
		}
	}
	return entries
}

// probe finds out whether the provider is available at all, and what to bind an endpoint to.
func probe(provider, domain string, src netip.Addr) (wanted, error) {
	prepare()
	if unmonitored(provider) {
		return wanted{}, fmt.Errorf("%w: it needs a monitor of registered memory: the kernel's module kdreg2, or userfaultfd(2), with FI_MR_CACHE_MONITOR unset", fabric.ErrNoProvider)
	}
	w := wanted{Hints: hintsFor(provider), provider: provider}
	if has(provider, namedRegion) {
		w.Source = regionBase()
	}
	list, err := getInfo(w.Hints)
	if errors.Is(err, syscall.ENODATA) {
		err = fmt.Errorf("%w: %w", fabric.ErrNoProvider, err)
	}
	if err != nil {
		return w, err
	}
	defer list.Free()
	at := places(append(w.matching(list), (&wanted{provider: provider, ib: true}).matching(list)...))
	i := pick(at, domain, src, nearby(src))
	switch {
	case i < 0 && domain != "" && len(at) > 0:
		return w, &fabric.DomainError{Provider: provider, Domain: domain, Domains: domains(at)}
	case i < 0:
		return w, fabric.ErrNoProvider
	case domain != "" || !at[i].ip:
		w.domain, w.ib = at[i].domain, at[i].ib
	}
	switch {
	case !at[i].ip || anywhere(src) && domain == "":
	case at[i].source.IsValid():
		w.Source = at[i].source.String()
	case domain == "":
		w.Source = src.Unmap().String()
	}
	return w, nil
}

// best asks for completion data and for message orders, then for less and less: a provider that
// lacks something that is asked for does not offer itself at all. info is valid until the list is
// freed.
func best(w wanted) (list *ofi.InfoList, info ofi.Info, asked wanted, err error) {
	const all = ofi.OrderSendAfterSend | ofi.OrderSendAfterWrite | ofi.OrderWriteAfterWrite
	for _, size := range []int{4, 0} {
		for _, order := range []ofi.Order{all, ofi.OrderSendAfterSend, 0} {
			w.CQDataSize, w.Order = size, order
			if list, err = getInfo(w.Hints); err != nil {
				continue
			}
			if entries := w.matching(list); len(entries) > 0 {
				return list, entries[0], w, nil
			}
			list.Free()
			err = fabric.ErrNoProvider
		}
	}
	return nil, info, w, err
}

// offersDelivery asks again with FI_DELIVERY_COMPLETE, since no attribute says whether the provider
// supports it.
func offersDelivery(w wanted) bool {
	w.DeliveryComplete = true
	list, err := getInfo(w.Hints)
	if err != nil {
		return false
	}
	defer list.Free()
	return len(w.matching(list)) > 0
}
