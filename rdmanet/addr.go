package rdmanet

import (
	"net"
	"net/netip"
	"strconv"
)

// networkName is what Addr.Network returns for conns over a fabric.
const networkName = "rdma"

// Addr is the address of one end of a Conn, or of a Listener: that of the TCP
// control connection. The results of Network and String can be passed to Dial again, and
// InfoOf finds the Conn by its Addr. Conns that share a control connection have distinct
// *Addr values for the same address: compare String or AddrPort. An Addr never changes.
type Addr struct {
	network string
	ap      netip.AddrPort
	conn    *Conn // nil except in what Conn.LocalAddr and RemoteAddr return
}

var _ net.Addr = (*Addr)(nil)

// Network returns "rdma", or "tcp" in errors of conns that use plain TCP.
func (a *Addr) Network() string {
	if a == nil {
		return networkName
	}
	return a.network
}

// String returns the address as host:port, with an IPv6 host in brackets.
func (a *Addr) String() string {
	if a == nil {
		return "<nil>"
	}
	return a.ap.String()
}

// AddrPort returns the address as a value.
func (a *Addr) AddrPort() netip.AddrPort {
	if a == nil {
		return netip.AddrPort{}
	}
	return a.ap
}

// newAddr converts a TCP connection's address.
func newAddr(network string, a net.Addr) *Addr {
	return &Addr{network: network, ap: addrPort(a)}
}

// of returns the same address, as one of c's.
func (a *Addr) of(c *Conn) Addr {
	return Addr{network: a.network, ap: a.ap, conn: c}
}

func addrPort(a net.Addr) netip.AddrPort {
	var ap netip.AddrPort
	switch a := a.(type) {
	case *net.TCPAddr:
		ap = a.AddrPort()
	case *Addr:
		ap = a.ap
	default:
		return ap
	}
	return netip.AddrPortFrom(canonical(ap.Addr()), ap.Port())
}

// addrPortOfTCP returns the zero value for everything but a *net.TCPAddr.
func addrPortOfTCP(a net.Addr) netip.AddrPort {
	if tcp, ok := a.(*net.TCPAddr); ok && tcp != nil {
		return tcp.AddrPort()
	}
	return netip.AddrPort{}
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
