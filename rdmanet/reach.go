package rdmanet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"
)

// nameAge is how long after a name was resolved dials by it find their peers in the cache.
// After that it is resolved again, as it may have moved.
const nameAge = 30 * time.Second

// maxNames bounds how many names are remembered: they come from the user.
const maxNames = 1024

// nameKey is what was dialed.
type nameKey struct {
	network, address string
	owner            *Dialer // see dialKey
	netns            netns
}

// name is what a dialed name was resolved to, and when.
type name struct {
	at    time.Time
	addrs []netip.AddrPort
}

// recentLocked takes the addresses of the dialed name from the cache, if it was resolved
// recently.
func (p *plan) recentLocked() bool {
	n, ok := p.t.links.names[p.name]
	if !ok || time.Since(n.at) >= nameAge {
		return false
	}
	p.addrs = n.addrs
	return true
}

// resolve looks up the addresses to dial, once.
func (p *plan) resolve(ctx context.Context) (err error) {
	if p.resolved {
		return nil
	}
	if p.addrs, err = p.lookup(ctx); err != nil {
		return err
	}
	p.resolved = true
	ls := &p.t.links
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if len(ls.names) >= maxNames {
		clear(ls.names)
	}
	ls.names[p.name] = name{time.Now(), p.addrs}
	return nil
}

// lookup resolves the dialed name. It leaves out addresses that the network or LocalAddr rules
// out.
func (p *plan) lookup(ctx context.Context) (list []netip.AddrPort, err error) {
	r := p.Resolver
	if r == nil {
		r = net.DefaultResolver
	}
	port, err := r.LookupPort(ctx, p.network, p.port)
	if err != nil {
		return nil, err
	}
	ips, ok := literal(p.host)
	if !ok {
		lookup := r.LookupNetIP
		if p.apart() {
			lookup = func(ctx context.Context, network, host string) ([]netip.Addr, error) {
				return lookupHere(ctx, r, network, host)
			}
		}
		if ips, err = lookup(ctx, "ip"+strings.TrimPrefix(p.network, "tcp"), p.host); err != nil {
			return nil, err
		}
	}
	local := addrPort(p.LocalAddr).Addr()
	bound := local.IsValid() && !local.IsUnspecified()
	for _, ip := range ips {
		ip = canonical(ip)
		if (p.network == "tcp" || ip.Is4() == (p.network == "tcp4")) && (!bound || ip.Is4() == local.Is4()) {
			list = append(list, netip.AddrPortFrom(ip, uint16(port)))
		}
	}
	if len(list) == 0 {
		return nil, &net.AddrError{Err: "no suitable address found", Addr: p.host}
	}
	return list, nil
}

// literal lists the addresses of a host that is not a name. An empty host or an unspecified
// address is this host.
func literal(host string) (ips []netip.Addr, ok bool) {
	v4, v6 := netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()
	if host == "" {
		return []netip.Addr{v4, v6}, true
	}
	switch ip, err := netip.ParseAddr(host); {
	case err != nil:
		return nil, false
	case !ip.IsUnspecified():
		return []netip.Addr{ip}, true
	case ip.Is4():
		return []netip.Addr{v4, v6}, true
	default:
		return []netip.Addr{v6, v4}, true
	}
}

// serverName returns what a certificate has to be for: the host without a zone, which means
// nothing to others.
func serverName(host string) string {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.WithZone("").String()
	}
	return host
}

const (
	// defaultFallbackDelay is RFC 8305's "Connection Attempt Delay", as net.Dialer has it.
	defaultFallbackDelay = 300 * time.Millisecond
	// minShare is the least share of a dial's time that an address gets, while that much is left.
	minShare = 2 * time.Second
)

// dialTCP makes a TCP connection to one of the name's addresses, in the way of net.Dialer
// (Happy Eyeballs, RFC 8305). net.Dialer itself would resolve the name once more.
func (p *plan) dialTCP(ctx context.Context) (net.Conn, error) {
	if err := p.resolve(ctx); err != nil {
		return nil, err
	}
	d := net.Dialer{LocalAddr: p.LocalAddr, KeepAliveConfig: p.KeepAliveConfig, Control: p.Control, ControlContext: p.ControlContext}
	dial := func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
		return d.DialContext(ctx, p.network, a.String())
	}
	if p.FallbackDelay < 0 || p.apart() { // dialParallel uses other goroutines
		return dialSerial(ctx, p.addrs, dial)
	}
	primaries, others := families(p.addrs)
	return dialParallel(ctx, primaries, others, orDefault(p.FallbackDelay, defaultFallbackDelay), dial)
}

// families splits a list into the addresses of the first one's family and the others.
func families(list []netip.AddrPort) (primaries, others []netip.AddrPort) {
	for _, a := range list {
		if a.Addr().Is4() == list[0].Addr().Is4() {
			primaries = append(primaries, a)
		} else {
			others = append(others, a)
		}
	}
	return primaries, others
}

// dialFunc dials one address.
type dialFunc func(context.Context, netip.AddrPort) (net.Conn, error)

// dialParallel dials primaries, and others after the delay or when primaries have failed. It
// returns the first connection that comes up, or the error of primaries.
func dialParallel(ctx context.Context, primaries, others []netip.AddrPort, delay time.Duration, dial dialFunc) (net.Conn, error) {
	if len(others) == 0 {
		return dialSerial(ctx, primaries, dial)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends what is late
	type result struct {
		nc      net.Conn
		err     error
		primary bool
	}
	results := make(chan result)
	start := func(list []netip.AddrPort, primary bool) {
		nc, err := dialSerial(ctx, list, dial)
		select {
		case results <- result{nc, err, primary}:
		case <-ctx.Done():
			if nc != nil {
				nc.Close()
			}
		}
	}
	go start(primaries, true)
	turn := time.NewTimer(delay)
	defer turn.Stop()
	var err error
	for running, waiting := 1, true; ; {
		select {
		case <-turn.C:
			go start(others, false)
			running, waiting = running+1, false
		case r := <-results:
			if r.err == nil {
				return r.nc, nil
			}
			if r.primary {
				err = r.err
			}
			if running--; waiting {
				turn.Reset(0)
			} else if running == 0 {
				return nil, err
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// dialSerial dials one address after the other. It returns the first connection that comes up,
// or the first error.
func dialSerial(ctx context.Context, list []netip.AddrPort, dial dialFunc) (net.Conn, error) {
	var first error
	for i, a := range list {
		nc, err := dialShare(ctx, a, len(list)-i, dial)
		if err == nil {
			return nc, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}

// dialShare dials one of n addresses, for its share of the time that is left.
func dialShare(ctx context.Context, a netip.AddrPort, n int, dial dialFunc) (net.Conn, error) {
	if deadline, ok := ctx.Deadline(); ok && n > 1 {
		left := time.Until(deadline)
		if share := max(left/time.Duration(n), minShare); share < left {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, share)
			defer cancel()
		}
	}
	nc, err := dial(ctx, a)
	// Package net also sets the context's deadline on the socket, and may see that one first.
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = because(context.DeadlineExceeded, err)
	}
	return nc, err
}
