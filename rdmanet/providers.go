package rdmanet

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// automatic lists the providers that are used without being named, best first.
var automatic = []string{
	"shm",
	"cxi", "efa", "psm3", "opx", "verbs;ofi_rxm",
	"tcp", "net", "tcp;ofi_rxm",
}

// named lists those that exist but have to be asked for.
var named = []string{"efa-direct", "net;ofi_rxm", "psm2", "sockets", "udp;ofi_rxd", "verbs;ofi_rxd", "gni", "bgq", "ucx", "lnx"}

// providersAge is how long a list of providers is good for: asking libfabric
// takes milliseconds, and devices come and go.
const providersAge = 10 * time.Second

type providerList struct {
	at    time.Time
	infos []fabric.ProviderInfo
}

// kept lists what was lately found for a local address.
func (t *Transport) kept(src netip.Addr) (infos []fabric.ProviderInfo, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	list, ok := t.providers[src]
	return list.infos, ok && time.Since(list.at) < providersAge
}

// available lists what this machine offers for a local address.
func (t *Transport) available(src netip.Addr) ([]fabric.ProviderInfo, error) {
	infos, err := t.fabric.Providers(src)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.providers) > 64 { // clients of servers with many addresses
		clear(t.providers)
	}
	t.providers[src] = providerList{time.Now(), infos}
	return infos, nil
}

// offer is a provider to negotiate over.
type offer struct {
	fabric.ProviderInfo
	domain string // if the user has named it
}

// offers lists the providers to negotiate over, in order of preference. Without
// any it fails and says what could be done, but not because of an old list: a device
// that has come up since can be used at once.
func (t *Transport) offers(src netip.Addr, wanted []string) ([]offer, error) {
	if infos, ok := t.kept(src); ok {
		if chosen, _ := choose(infos, wantedProviders(wanted)); len(chosen) > 0 {
			return chosen, nil
		}
	}
	infos, err := t.available(src)
	if errors.Is(err, fabric.ErrNoProvider) && len(wantedProviders(wanted)) > 0 {
		infos, err = nil, nil // say which one is missing
	}
	if err != nil {
		return nil, err
	}
	chosen, missing := choose(infos, wantedProviders(wanted))
	switch {
	case len(chosen) > 0:
		return chosen, nil
	case len(missing) > 0:
		return nil, t.missing(src, missing[0], infos)
	}
	return nil, fmt.Errorf("%w: none of %s; there are %s", fabric.ErrNoProvider,
		strings.Join(automatic, ", "), names(infos))
}

// wantedProviders is what the user asked for, nil for the automatic choice.
func wantedProviders(list []string) []string {
	if len(list) > 0 {
		return list
	}
	return strings.FieldsFunc(os.Getenv(providersVariable), func(r rune) bool { return r == ',' || r == ' ' })
}

// choose filters and orders what is available: each provider once, in the first
// wanted domain that is there. Wanted providers and domains that are not are
// missing.
func choose(infos []fabric.ProviderInfo, wanted []string) (chosen []offer, missing []string) {
	explicit := len(wanted) > 0
	if !explicit {
		wanted = automatic
	}
	for _, name := range wanted {
		provider, domain := fabric.Split(name)
		i := slices.IndexFunc(infos, func(p fabric.ProviderInfo) bool {
			return p.Name == provider && (p.Domain == domain || domain == "" && !p.Elsewhere)
		})
		switch {
		case i >= 0 && !slices.ContainsFunc(chosen, func(o offer) bool { return o.Name == provider }):
			chosen = append(chosen, offer{infos[i], domain})
		case i < 0 && explicit:
			missing = append(missing, name)
		}
	}
	return chosen, missing
}

// known tells providers from misspelt names.
func known(provider string, infos []fabric.ProviderInfo) bool {
	return slices.Contains(automatic, provider) || slices.Contains(named, provider) ||
		slices.ContainsFunc(infos, func(p fabric.ProviderInfo) bool { return p.Name == provider })
}

// missing says why a provider, or a domain of it, is not there. Only the attempt to
// open it tells, for example, that /dev/shm is too small.
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

// hostID is equal for processes on one host, and zero where nothing tells.
// Containers on one host share the boot id; whether they share memory, and may use
// it, is found out with the page of the rendezvous.
func hostID() (id [16]byte) {
	for _, file := range []string{"/proc/sys/kernel/random/boot_id", "/etc/machine-id"} {
		if b, err := os.ReadFile(file); err == nil && len(b) > 0 {
			sum := sha256.Sum256(append([]byte("rdmanet host "), b...))
			copy(id[:], sum[:])
			return id
		}
	}
	return id
}
