package rdmanet

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/seed202c38ff/fabricnet/internal/engine"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// ProviderInfo describes a provider in one of its domains, as it would serve conns
// whose control connection has a certain local address.
type ProviderInfo struct {
	Provider string // libfabric's name
	Domain   string // a device; "" if the provider does not exist here
	Fabric   string
	// Protocol and ProtocolVersion are the provider's wire protocol, as in
	// fi_endpoint(3).
	Protocol        uint32
	ProtocolVersion uint32
	Addresses       []netip.Addr // IP addresses of the domain, if it has any

	// What an endpoint offers, if one could be opened: the largest inject and the largest
	// message, in bytes; the bytes of completion data; the message orders (SAS, SAW, WAW: see
	// fi_endpoint(3)); the demands on registered memory (the names in fi_mr(3), without
	// FI_MR_); what can be waited on ("fd", or "none", which means a doorbell of rdmanet's
	// own, or polling); and how large writes travel.
	InjectSize int
	MaxMsgSize uint64
	CQDataSize int
	Order      string
	MRMode     string
	WaitObject string
	LargePath  string

	// Rank is the place in the order of preference, from 1. It is 0 if rdmanet would not use
	// the provider; then Reason says why.
	Rank   int
	Reason string
}

// Providers describes the providers that this machine has, and those that rdmanet would use
// but for what Reason says. They come in order of preference, and those that would not be used
// come last. local is the local address of the control connection; the zero Addr stands for
// any. providers is as in Dialer.Providers. To find out what works, Providers opens an endpoint
// of each, one after the other, and closes it again: that can take seconds. It fails with the
// context's error if ctx ends, with ErrUnsupported if there is no libfabric, with ErrConfig,
// and with net.ErrClosed after Close.
func (t *Transport) Providers(ctx context.Context, local netip.Addr, providers []string) ([]ProviderInfo, error) {
	t = transportOr(t)
	end, err := t.begin()
	if err != nil {
		return nil, err
	}
	defer end()
	if t.invalid != nil {
		return nil, t.invalid
	}
	local = canonical(local)
	infos, err := t.available(local)
	if err != nil && !errors.Is(err, fabric.ErrNoProvider) {
		return nil, err
	}
	if err := t.checkProviders("Transport.Providers", providers); err != nil {
		return nil, err
	}
	wishes := t.wishes(providers)
	chosen, _ := choose(infos, wishes)
	s := &survey{t: t, local: local, wishes: wishes}
	for _, o := range chosen {
		if err := s.add(ctx, o.ProviderInfo, true); err != nil {
			return nil, err
		}
	}
	for _, w := range wishes {
		s.missing(w.name, infos)
	}
	for _, info := range infos {
		if slices.ContainsFunc(chosen, func(o offer) bool { return o.Name == info.Name && o.Domain == info.Domain }) {
			continue
		}
		if err := s.add(ctx, info, false); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(s.list, func(a, b ProviderInfo) int { return s.last(a) - s.last(b) })
	return s.list, nil
}

// survey is a call of Providers.
type survey struct {
	t      *Transport
	local  netip.Addr
	wishes []wish
	list   []ProviderInfo
	ranks  int
}

// add tries a provider in one of its domains.
func (s *survey) add(ctx context.Context, info fabric.ProviderInfo, chosen bool) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	p := ProviderInfo{
		Provider: info.Name, Domain: info.Domain, Fabric: info.Fabric, Addresses: info.Addrs,
		Protocol: info.Protocol, ProtocolVersion: info.ProtocolVersion,
	}
	var err error
	if chosen || !info.Fragile {
		err = s.try(&p)
	}
	switch {
	case err != nil:
		p.Reason = err.Error()
	case chosen:
		s.ranks++
		p.Rank = s.ranks
	default:
		p.Reason = s.unused(info)
	}
	s.list = append(s.list, p)
	return nil
}

// try opens an endpoint, with all that it takes to use it, and fills p in.
func (s *survey) try(p *ProviderInfo) error {
	fab, err := s.t.fabric.Open(fabric.Join(p.Provider, p.Domain), s.local)
	if err != nil {
		return err
	}
	a := fab.Attr()
	p.InjectSize, p.MaxMsgSize, p.CQDataSize = a.InjectSize, a.MaxMsgSize, a.CQDataSize
	p.Order, p.MRMode, p.LargePath = a.Order.String(), a.MRMode, engine.ChooseRule(a).String()
	p.WaitObject = "none"
	if fab.Waiter() != nil {
		p.WaitObject = "fd"
	}
	ep, err := engine.NewEndpoint(fab, s.t.engineConfig())
	if err != nil {
		return errors.Join(err, fab.Close())
	}
	return ep.Close()
}

// unused returns why a provider that works is not used.
func (s *survey) unused(info fabric.ProviderInfo) string {
	wished := slices.ContainsFunc(s.wishes, func(w wish) bool {
		provider, _ := fabric.Split(w.name)
		return provider == info.Name
	})
	switch {
	case !wished && !hasAuto(s.wishes):
		return "not in the list of providers"
	case !wished:
		return "used only if it is named"
	case info.Elsewhere:
		return "used only if the domain is named: the address is not there"
	}
	return "another domain is named, or comes first"
}

// missing adds a provider that would be used if it were there.
func (s *survey) missing(name string, infos []fabric.ProviderInfo) {
	provider, domain := fabric.Split(name)
	if slices.ContainsFunc(infos, func(p fabric.ProviderInfo) bool {
		return p.Name == provider && (domain == "" || p.Domain == domain)
	}) {
		return
	}
	if reason := s.t.absent(s.local, name); reason != "" {
		s.list = append(s.list, ProviderInfo{Provider: provider, Domain: domain, Reason: reason})
	}
}

// last is what the list is sorted by: those that are used, those that are there, the others.
func (s *survey) last(p ProviderInfo) int {
	switch {
	case p.Rank > 0:
		return p.Rank
	case p.Fabric != "":
		return s.ranks + 1
	}
	return s.ranks + 2
}
