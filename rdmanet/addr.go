package rdmanet

import (
	"net"
	"net/netip"
	"strconv"
)

// networkName is what net.OpError.Net says of everything but plain TCP. The addresses themselves
// are TCP addresses, whose network is "tcp".
const networkName = "rdma"

// newAddr returns a copy of a TCP address, in the form in which addresses are compared.
func newAddr(a net.Addr) *net.TCPAddr { return net.TCPAddrFromAddrPort(addrPort(a)) }

// addrPort returns a TCP address in the form in which addresses are compared, and the zero value
// for everything else.
func addrPort(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok || tcp == nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(canonical(tcp.AddrPort().Addr()), tcp.AddrPort().Port())
}

// withPort returns an address with another port.
func withPort(a *net.TCPAddr, port uint16) *net.TCPAddr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(a.AddrPort().Addr(), port))
}

// canonical makes addresses comparable. A zone may be given by the interface's name or
// number: it becomes the name. As in the kernel, only link-local addresses keep a zone.
func canonical(ip netip.Addr) netip.Addr {
	ip = ip.Unmap()
	if ip.Zone() == "" {
		return ip
	}
	if !ip.IsLinkLocalUnicast() {
		return ip.WithZone("")
	}
	n, err := strconv.Atoi(ip.Zone())
	if err != nil {
		return ip
	}
	if _, err := net.InterfaceByName(ip.Zone()); err == nil { // the name is a number: package net prefers names
		return ip
	}
	if i, err := net.InterfaceByIndex(n); err == nil {
		return ip.WithZone(i.Name)
	}
	return ip
}

// zoneOf returns the zone of an address to listen on, "" if it has none.
func zoneOf(address string) string {
	host, _, _ := net.SplitHostPort(address)
	ip, _ := netip.ParseAddr(host)
	return canonical(ip).Zone()
}

// inZone adds the zone without which a link-local address cannot be dialed. Go's listeners
// are Multipath TCP sockets, which do not report it. It is the given zone if there is one,
// or else that of the only interface with this address.
func inZone(ap netip.AddrPort, zone string) netip.AddrPort {
	ip := ap.Addr()
	if !ip.Is6() || !ip.IsLinkLocalUnicast() || ip.Zone() != "" {
		return ap
	}
	if zone == "" {
		zone = onlyZone(ip)
	}
	return netip.AddrPortFrom(ip.WithZone(zone), ap.Port())
}

// onlyZone returns the interface that has a link-local address, "" if none or several have it.
func onlyZone(ip netip.Addr) (zone string) {
	list, _ := net.Interfaces()
	for _, i := range list {
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip.AsSlice()) {
				if zone != "" {
					return ""
				}
				zone = i.Name
			}
		}
	}
	return zone
}

// tcpNetwork translates a network's name to that of the control connection.
func tcpNetwork(network string) (string, error) {
	switch network {
	case "rdma", "tcp":
		return "tcp", nil
	case "rdma4", "tcp4":
		return "tcp4", nil
	case "rdma6", "tcp6":
		return "tcp6", nil
	}
	return "", net.UnknownNetworkError(network)
}
