package rdmanet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/bootstrap"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// automatic lists the providers that are used without being named, best first: shared memory
// within this host, and RDMA hardware.
var automatic = []string{"shm", "cxi", "efa", "verbs;ofi_rxm"}

// suggested lists those that have to be named, and that are worth it. The software ones, which
// come last, open a port of libfabric's own that authenticates nobody (docs/security.md), and
// plain TCP is faster. The hardware ones have not been tried yet.
var suggested = []string{"psm3", "opx", "efa-direct", "tcp", "net", "tcp;ofi_rxm", "udp;ofi_rxd"}

// named lists all that have to be named.
var named = slices.Concat(suggested, []string{"sockets", "net;ofi_rxm", "psm2", "verbs;ofi_rxd", "gni", "bgq", "ucx", "lnx"})

// auto is an entry of a list of providers that stands for all of automatic.
const auto = "auto"

// wish is an entry of a list of providers.
type wish struct {
	name string // a provider, or one and a domain
	auto bool   // it comes from auto: it need not be there
}

// wishes reads a list of providers, or what takes its place if it is empty.
func (t *Transport) wishes(list []string) (wishes []wish) {
	for _, name := range wished(list) {
		if name != auto {
			wishes = append(wishes, wish{name, false})
			continue
		}
		for _, name := range t.automatic() {
			wishes = append(wishes, wish{name, true})
		}
	}
	return wishes
}

// wished returns the list of providers in force, in which auto may stand for several.
func wished(list []string) []string {
	if len(list) == 0 {
		list = listIn(providersVariable)
	}
	if len(list) == 0 {
		list = []string{auto}
	}
	return list
}

func (t *Transport) automatic() []string {
	if t.auto != nil {
		return t.auto
	}
	return automatic
}

// hasAuto reports whether a list leaves some of the choice to us.
func hasAuto(wishes []wish) bool {
	return slices.ContainsFunc(wishes, func(w wish) bool { return w.auto })
}

// providersAge is how long a list of providers may be used: asking libfabric takes
// milliseconds, but devices come and go. nothingAge is how long it is remembered that a search has
// found nothing to offer, so that strangers cannot cause many.
const (
	providersAge = 10 * time.Second
	nothingAge   = time.Second
)

type providerList struct {
	at    time.Time
	infos []fabric.ProviderInfo
}

// kept returns what was recently found for a local address.
func (t *Transport) kept(src netip.Addr) (infos []fabric.ProviderInfo, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	list, ok := t.providers[src]
	return list.infos, ok && time.Since(list.at) < providersAge
}

// available asks libfabric what this machine offers for a local address.
func (t *Transport) available(src netip.Addr) ([]fabric.ProviderInfo, error) {
	var infos []fabric.ProviderInfo
	var err error
	ask := func() { infos, err = t.fabric.Providers(src) }
	if t.apart(threadNetns()) { // libfabric keeps what it finds
		onAnyThread(ask)
	} else {
		ask()
	}
	if err != nil && !errors.Is(err, fabric.ErrNoProvider) {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.providers) > 64 { // there may be many local addresses
		clear(t.providers)
	}
	t.providers[src] = providerList{time.Now(), infos}
	return infos, err
}

// offer is a provider to negotiate over.
type offer struct {
	fabric.ProviderInfo
	domain string // if the user has named it
}

// offers lists the providers to negotiate over, in order of preference. left names the others
// that are here, for errors that say what could be done. A list of what is here that is older than
// nothingAge serves only if it has something to offer, so that a device that has come up since can
// be used soon.
func (t *Transport) offers(ctx context.Context, src netip.Addr, list []string) (chosen []offer, left []string, err error) {
	wishes := t.wishes(list)
	if infos, ok := t.kept(src); ok {
		if chosen, _ := choose(infos, wishes); len(chosen) > 0 {
			return chosen, unoffered(infos, chosen), nil
		}
	}
	s, err := t.lastSearch(ctx, src, wishes)
	if err != nil {
		return nil, nil, err
	}
	return slices.Clone(s.chosen), slices.Clone(s.left), s.err
}

// question is what a search is for.
type question struct {
	src    netip.Addr
	wishes string
}

// search is a search for something to offer. All that ask while it is under way share what it finds,
// and those that ask in nothingAge after share that it has found nothing.
type search struct {
	done   chan struct{} // closed once the rest is known
	ended  time.Time     // zero while it is under way; guarded by Transport.mu
	chosen []offer
	left   []string
	err    error
}

// lastSearch returns a recent search, once it has ended. It begins one if there is none, and gives
// up if ctx ends: a call of libfabric's may hang, and the search with it.
func (t *Transport) lastSearch(ctx context.Context, src netip.Addr, wishes []wish) (*search, error) {
	q := question{src, fmt.Sprint(wishes)}
	t.mu.Lock()
	s := t.searches[q]
	if s == nil || !s.ended.IsZero() && time.Since(s.ended) >= nothingAge {
		if len(t.searches) > 64 { // as in available
			clear(t.searches)
		}
		s = &search{done: make(chan struct{})}
		t.searches[q] = s
		t.hands.start(func() { t.search(q, s, wishes) }) // the caller has one, but may not wait for the end
	}
	t.mu.Unlock()
	select {
	case <-s.done:
		return s, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for libfabric to list its providers: %w", context.Cause(ctx))
	}
}

// search carries a search out. An error other than that nothing was found, such as that there are no
// file descriptors, is forgotten: it may pass.
func (t *Transport) search(q question, s *search, wishes []wish) {
	defer close(s.done)
	s.chosen, s.left, s.err = t.look(q.src, wishes)
	t.mu.Lock()
	defer t.mu.Unlock()
	s.ended = time.Now()
	if s.err != nil && !errors.Is(s.err, fabric.ErrNoProvider) && t.searches[q] == s {
		delete(t.searches, q)
	}
}

// look asks libfabric for something to offer.
func (t *Transport) look(src netip.Addr, wishes []wish) (chosen []offer, left []string, err error) {
	infos, err := t.available(src)
	if err != nil && !errors.Is(err, fabric.ErrNoProvider) {
		return nil, nil, err
	}
	chosen, missing := choose(infos, wishes)
	left = unoffered(infos, chosen)
	switch {
	case len(chosen) > 0:
		return chosen, left, nil
	case len(missing) > 0 && !hasAuto(wishes):
		return nil, left, t.missing(src, missing[0], infos)
	}
	const shm = "shm" // the one whose absence has reasons that can be mended
	if slices.ContainsFunc(wishes, func(w wish) bool { return w.name == shm }) {
		if reason := t.absent(src, shm); reason != "" {
			left = append([]string{shm + ": " + reason}, left...)
		}
	}
	return nil, left, nothing(err, wishes, left)
}

// nothing returns the error of a side that has no provider to offer.
func nothing(err error, wishes []wish, unoffered []string) error {
	if err == nil {
		err = fabric.ErrNoProvider
	}
	var wanted []string
	for _, w := range wishes {
		wanted = append(wanted, w.name)
	}
	text := "none of " + strings.Join(wanted, ", ")
	if len(unoffered) > 0 {
		text += "; not offered: " + strings.Join(unoffered, ", ")
	}
	return fmt.Errorf("%w: %s; %s", err, text, bootstrap.Remedy(nil))
}

// unoffered names what is here and would be offered if it were named.
func unoffered(infos []fabric.ProviderInfo, chosen []offer) (list []string) {
	for _, name := range slices.Concat(automatic, suggested) {
		if !slices.ContainsFunc(chosen, func(o offer) bool { return o.Name == name }) &&
			slices.ContainsFunc(infos, func(p fabric.ProviderInfo) bool { return p.Name == name && !p.Elsewhere }) {
			list = append(list, name)
		}
	}
	return list
}

// withinHost returns a function that reports whether a provider that was recently found reaches
// no other host.
func (t *Transport) withinHost(src netip.Addr) func(name string) bool {
	infos, _ := t.kept(src)
	return func(name string) bool {
		return slices.ContainsFunc(infos, func(p fabric.ProviderInfo) bool { return p.Name == name && p.SameHost })
	}
}

// choose filters and orders what is available: each provider once, in the first wanted domain
// that is there. missing has the named providers and domains that are not there.
func choose(infos []fabric.ProviderInfo, wishes []wish) (chosen []offer, missing []string) {
	for _, w := range wishes {
		provider, domain := fabric.Split(w.name)
		i := slices.IndexFunc(infos, func(p fabric.ProviderInfo) bool {
			return p.Name == provider && (p.Domain == domain || domain == "" && !p.Elsewhere)
		})
		switch {
		case i >= 0 && !slices.ContainsFunc(chosen, func(o offer) bool { return o.Name == provider }):
			chosen = append(chosen, offer{infos[i], domain})
		case i < 0 && !w.auto:
			missing = append(missing, w.name)
		}
	}
	return chosen, missing
}

// known reports whether a provider's name is known, rather than misspelt.
func known(provider string, infos []fabric.ProviderInfo) bool {
	return provider == auto || slices.Contains(automatic, provider) || slices.Contains(named, provider) ||
		slices.ContainsFunc(infos, func(p fabric.ProviderInfo) bool { return p.Name == provider })
}

// missing returns why a provider, or a domain of it, is not there. Only the attempt to open it
// shows, for example, that /dev/shm is too small.
func (t *Transport) missing(src netip.Addr, name string, infos []fabric.ProviderInfo) error {
	ep, err := t.fabric.Open(name, src)
	if err == nil {
		err = errors.Join(fmt.Errorf("provider %s: %w", name, fabric.ErrNoProvider), ep.Close())
	}
	if de := (*fabric.DomainError)(nil); errors.As(err, &de) {
		return err
	}
	return fmt.Errorf("%w; this machine offers %s", err, names(infos))
}

// absent returns why a provider that is not listed cannot be used, "" if it can.
func (t *Transport) absent(src netip.Addr, name string) string {
	ep, err := t.fabric.Open(name, src)
	if err == nil { // it has come meanwhile
		err = ep.Close()
	}
	if err == nil {
		return ""
	}
	return strings.TrimPrefix(err.Error(), "provider "+name+": ")
}

// names lists the providers that can be used without naming a domain.
func names(infos []fabric.ProviderInfo) string {
	var list []string
	for _, p := range infos {
		if !p.Elsewhere {
			list = append(list, p.Name)
		}
	}
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}
