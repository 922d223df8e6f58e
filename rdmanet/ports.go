package rdmanet

import (
	"net/netip"
	"sync"

	"github.com/seed202c38ff/fabricnet/framing"
)

// portSet has the ports of the conns that a Transport has accepted: those in RemoteAddr. No two conns
// from one IP address that are there at a time have the same, whatever their listeners. It takes one
// port after the other, so that one that was given back is not taken again soon. The zero value is
// ready to use. All methods may be called concurrently, and with an endpoint locked.
type portSet struct {
	mu    sync.Mutex // a leaf; guards what follows
	hosts map[netip.Addr]*hostPorts
	last  uint16 // that was taken of a range
}

// emptyHosts is from how many hosts on those without conns are forgotten: the next conn of a
// client that opens one after the other should not have to begin anew.
const emptyHosts = 64

// hostPorts has the ports of the conns from one IP address.
type hostPorts struct {
	taken map[uint16]struct{}
	count [len(portRanges)]int // of these, in each range
}

// portRanges are where ports come from, the first range for as long as there are any: plain TCP
// clients of the same host most often have ports of the second one.
var portRanges = [...]struct{ first, last int }{{1024, 1<<15 - 1}, {1 << 15, 1<<16 - 1}}

// take takes a port for a conn from ip: wish, if that is free and not 0. If all are
// taken, the conn is refused, as connect(2) fails with EADDRNOTAVAIL.
func (p *portSet) take(ip netip.Addr, wish uint16) (port uint16, code framing.ResetCode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hosts[ip]
	if h == nil {
		if p.hosts == nil {
			p.hosts = make(map[netip.Addr]*hostPorts)
		}
		h = &hostPorts{taken: make(map[uint16]struct{})}
		p.hosts[ip] = h
	}
	if _, used := h.taken[wish]; used || wish == 0 {
		if wish = h.next(p.last); wish == 0 {
			return 0, framing.ResetRefused
		}
		p.last = wish
	}
	h.add(wish, 1)
	h.taken[wish] = struct{}{}
	return wish, 0
}

// giveBack gives back a port that was taken for a conn from ip.
func (p *portSet) giveBack(ip netip.Addr, port uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hosts[ip]
	h.add(port, -1)
	if delete(h.taken, port); len(h.taken) == 0 && len(p.hosts) >= emptyHosts {
		delete(p.hosts, ip)
	}
}

// next returns the first port after last that is free, 0 if there is none.
func (h *hostPorts) next(last uint16) uint16 {
	for i, r := range portRanges {
		n := r.last - r.first + 1
		if h.count[i] == n {
			continue
		}
		for at := max(int(last)+1, r.first); ; at++ {
			port := uint16(r.first + (at-r.first)%n)
			if _, used := h.taken[port]; !used {
				return port
			}
		}
	}
	return 0
}

// add counts a port that is taken or given back.
func (h *hostPorts) add(port uint16, n int) {
	for i, r := range portRanges {
		if r.first <= int(port) && int(port) <= r.last {
			h.count[i] += n
		}
	}
}
