//go:build linux && cgo

package ofifabric

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
)

// place says where an endpoint would be.
type place struct {
	domain string
	ip     bool       // endpoints are addressed by IP
	ib     bool       // or by GID, as on InfiniBand, whatever the link
	source netip.Addr // the address that it would be bound to, if the provider says so
	nic    ofi.NIC
}

func places(entries []ofi.Info) []place {
	list := make([]place, len(entries))
	for i, info := range entries {
		list[i] = place{info.Domain(), info.HasIP(), info.HasInfiniBand(), named(info.Source()), info.NIC()}
	}
	return list
}

// named replaces a zone that is a number by the interface's name, which is what the zones of conns'
// addresses are.
func named(ip netip.Addr) netip.Addr {
	if n, err := strconv.Atoi(ip.Zone()); err == nil {
		if i, err := net.InterfaceByIndex(n); err == nil {
			return ip.WithZone(i.Name)
		}
	}
	return ip
}

// same compares addresses. Two interfaces may have the same link-local address; an address without
// a zone means either.
func same(a, b netip.Addr) bool {
	return a.WithZone("") == b.WithZone("") && (a.Zone() == b.Zone() || a.Zone() == "" || b.Zone() == "")
}

// domains lists the domains, each once.
func domains(list []place) (names []string) {
	for _, p := range list {
		if !slices.Contains(names, p.domain) {
			names = append(names, p.domain)
		}
	}
	return names
}

func anywhere(src netip.Addr) bool { return !src.IsValid() || src.IsUnspecified() }

// addresses lists the IP addresses of a domain, each once.
func addresses(list []place, domain string) (addrs []netip.Addr) {
	for _, p := range list {
		if p.domain == domain && p.source.IsValid() && !slices.Contains(addrs, p.source) {
			addrs = append(addrs, p.source)
		}
	}
	return addrs
}

// How well a place suits a connection's local address, from worst to best.
const (
	strange = iota // an InfiniBand address: see ibIfNamed
	foreign        // an address of another family, or of the link only
	away           // another address of the same family
	unsaid         // unknown
	at             // the place has the address
)

// suits rates a place for src; near reports whether a device is the one that has src.
func (p place) suits(src netip.Addr, near func(ofi.NIC) bool) int {
	src = src.Unmap()
	switch {
	case p.ib:
		return strange
	case anywhere(src):
		return unsaid
	case !p.ip && near(p.nic), p.ip && same(p.source, src):
		return at
	case !p.ip || !p.source.IsValid():
		return unsaid
	case p.source.Is4() == src.Is4() && !p.source.IsLinkLocalUnicast():
		return away
	}
	return foreign
}

// pick returns the index of the first place that suits src best, or -1 if there is none. If a
// domain is named, all of its places will do; otherwise only places that have src, or may have it.
func pick(list []place, domain string, src netip.Addr, near func(ofi.NIC) bool) int {
	best, least := -1, unsaid
	if domain != "" {
		least = strange
	}
	for i, p := range list {
		if domain != "" && p.domain != domain {
			continue
		}
		if s := p.suits(src, near); s >= least {
			best, least = i, s+1
		}
	}
	return best
}

// classNet is where Linux lists the network interfaces and their devices.
const classNet = "/sys/class/net"

// nearby returns a function that reports whether a device is that of the network interface with the
// address src. The interface is not looked up before the function needs it.
func nearby(src netip.Addr) func(ofi.NIC) bool {
	device := sync.OnceValue(func() ofi.NIC {
		name, mac := interfaceOf(src)
		return ofi.NIC{PCI: pciOf(classNet, name), Link: mac}
	})
	return func(nic ofi.NIC) bool {
		if nic == (ofi.NIC{}) {
			return false
		}
		return sameDevice(nic, device())
	}
}

func sameDevice(a, b ofi.NIC) bool {
	return a.PCI != "" && a.PCI == b.PCI || a.Link != "" && strings.EqualFold(a.Link, b.Link)
}

// interfaceOf returns the name and the link address of the network interface that has an address,
// both empty if there is none.
func interfaceOf(src netip.Addr) (name, mac string) {
	list, _ := net.Interfaces()
	for _, i := range list {
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && same(p.Addr().WithZone(i.Name), src.Unmap()) {
				return i.Name, i.HardwareAddr.String()
			}
		}
	}
	return "", ""
}

// pciOf returns the PCI bus address of a network interface's device, empty if it has none.
func pciOf(class, name string) string {
	if name == "" {
		return ""
	}
	device, err := os.Readlink(filepath.Join(class, name, "device"))
	if err != nil || !strings.Contains(device, ":") {
		return ""
	}
	return filepath.Base(device)
}
