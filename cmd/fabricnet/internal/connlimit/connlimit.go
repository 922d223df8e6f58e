// Package connlimit bounds how many conns are open at once, in all and from one host, so that one
// host cannot take all places, and has the means to refuse those that are too many.
package connlimit

import (
	"errors"
	"net"
	"net/netip"
	"sync"
)

// The errors of Enter.
var (
	ErrAll  = errors.New("too many")
	ErrHost = errors.New("too many from one host")
)

// Limiter counts conns. Its fields must not be changed once conns have entered. It may be used
// concurrently.
type Limiter struct {
	Max        int // 0: no bound
	MaxPerHost int // 0: no bound

	mu    sync.Mutex // guards what follows
	open  int
	hosts map[netip.Prefix]int
}

// Enter takes a place for a conn. leave must be called once, when the conn is over.
func (l *Limiter) Enter(from net.Addr) (leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	host, bounded := hostOf(from)
	switch {
	case l.Max > 0 && l.open >= l.Max:
		return nil, ErrAll
	case bounded && l.MaxPerHost > 0 && l.hosts[host] >= l.MaxPerHost:
		return nil, ErrHost
	}
	if l.hosts == nil {
		l.hosts = make(map[netip.Prefix]int)
	}
	l.open++
	l.hosts[host]++
	return func() { l.leave(host) }, nil
}

func (l *Limiter) leave(host netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.hosts[host]--; l.hosts[host] == 0 {
		delete(l.hosts, host)
	}
}

// hostOf returns an IPv4 address, or a /64 of IPv6, in which a user can have any address. This host
// itself, by loopback addresses and Unix sockets, is not bounded: it has no others to make room for.
func hostOf(from net.Addr) (host netip.Prefix, bounded bool) {
	a, ok := from.(interface{ AddrPort() netip.AddrPort })
	if !ok {
		return host, false
	}
	ip := a.AddrPort().Addr().Unmap().WithZone("")
	host, err := ip.Prefix(min(ip.BitLen(), 64))
	return host, err == nil && host.IsValid() && !ip.IsLoopback()
}
