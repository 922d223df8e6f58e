package main

import (
	"bufio"
	"fmt"
	"net"
	"time"

	"github.com/pires/go-proxyproto"
)

// route says where a conn comes from, and which address was dialed. The addresses are the conn's
// own unless a header has named others.
type route struct{ from, to net.Addr }

func routeOf(c net.Conn) route { return route{c.RemoteAddr(), c.LocalAddr()} }

// readHeader reads the header of the PROXY protocol, in either version, that c begins with. rest
// holds bytes that came along with it.
func readHeader(c net.Conn, limit time.Duration) (r route, rest []byte, err error) {
	if err := c.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return r, nil, err
	}
	buf := bufio.NewReader(c)
	h, err := proxyproto.Read(buf)
	if err != nil {
		return r, nil, fmt.Errorf("--accept-proxy: %w", err)
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		return r, nil, err
	}
	r = routeOf(c)
	// A proxy's own conns, such as those for health checks, have a LOCAL header.
	if h.Command.IsProxy() && h.SourceAddr != nil && h.DestinationAddr != nil {
		r = route{h.SourceAddr, h.DestinationAddr}
	}
	rest, err = buf.Peek(buf.Buffered())
	return r, rest, err
}

// writeHeader begins c with a header of version 2. The header has no extensions: those of a header
// that was accepted are not passed on.
func writeHeader(c net.Conn, r route, limit time.Duration) error {
	text, err := proxyproto.HeaderProxyFromAddrs(2, plain(r.from), plain(r.to)).Format()
	if err != nil {
		return fmt.Errorf("--send-proxy: %w", err)
	}
	if err := c.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	if _, err := c.Write(text); err != nil {
		return fmt.Errorf("--send-proxy: %w", err)
	}
	return c.SetWriteDeadline(time.Time{})
}

// plain turns the address of a fabric's control connection into what it is, a TCP address.
func plain(a net.Addr) net.Addr {
	if at, ok := addrPort(a); ok {
		return net.TCPAddrFromAddrPort(at)
	}
	return a
}
