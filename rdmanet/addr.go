package rdmanet

import (
	"net"
	"net/netip"
)

// networkName is what Addr.Network returns for conns over a fabric.
const networkName = "rdma"

// Addr is the address of one end of a Conn, or of a Listener: that of the TCP
// rendezvous. Network and String can be passed to Dial again, and InfoOf tells of
// the Conn. Conns that share a rendezvous have values of their own for the same
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
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// tcpNetwork translates a network's name to that of the rendezvous.
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
