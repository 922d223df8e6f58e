package rdmanet

import (
	"net"
	"net/netip"
	"strconv"
)

// networkName is what Addr.Network returns for conns over a fabric.
const networkName = "rdma"

// Addr is the address of one end of a Conn, or of a Listener: that of the TCP
// control connection. Network and String can be passed to Dial again, and InfoOf tells of
// the Conn. Conns that share a control connection have values of their own for the same
// address: compare String or AddrPort. An Addr never changes.
type Addr struct {
	network string
	ap      netip.AddrPort
	conn    *Conn // nil but in what Conn.LocalAddr and RemoteAddr return
}

var _ net.Addr = (*Addr)(nil)

// Network is "rdma", or "tcp" in errors of conns that use plain TCP.
func (a *Addr) Network() string {
	if a == nil {
		return networkName
	}
	return a.network
}

// String is host:port, with an IPv6 host in brackets.
func (a *Addr) String() string {
	if a == nil {
		return "<nil>"
	}
	return a.ap.String()
}

// AddrPort is the address as a value.
func (a *Addr) AddrPort() netip.AddrPort {
	if a == nil {
		return netip.AddrPort{}
	}
	return a.ap
}

// newAddr takes over a TCP connection's address.
func newAddr(network string, a net.Addr) *Addr {
	return &Addr{network: network, ap: addrPort(a)}
}

// of is the same address as one of c's.
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

// addrPortOfTCP is the zero value for what is no address of package net's for TCP.
func addrPortOfTCP(a net.Addr) netip.AddrPort {
	if tcp, ok := a.(*net.TCPAddr); ok && tcp != nil {
		return tcp.AddrPort()
	}
	return netip.AddrPort{}
}

// canonical makes addresses comparable. A zone, which may be given by the interface's
// name or number, gets the name, and only link-local addresses have one, as in the kernel.
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
	if _, err := net.InterfaceByName(ip.Zone()); err == nil { // a number as a name, which package net prefers
		return ip
	}
	if i, err := net.InterfaceByIndex(n); err == nil {
		return ip.WithZone(i.Name)
	}
	return ip
}

// zoneOf is the zone of an address to listen on, "" if it has none.
func zoneOf(address string) string {
	host, _, _ := net.SplitHostPort(address)
	ip, _ := netip.ParseAddr(host)
	return canonical(ip).Zone()
}

// inZone adds what a link-local address lacks to be dialed, since Multipath TCP sockets,
// which Go's listeners are, do not tell: the zone that is known, or the one that there is.
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

// onlyZone is the interface that has a link-local address, "" if several have it.
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
