package rdmanet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// countedConn remembers whether it was closed.
type countedConn struct {
	net.Conn
	addr   netip.AddrPort
	closed bool
}

func (c *countedConn) Close() error { c.closed = true; return nil }

// site is an address of a simulated network.
type site struct {
	after time.Duration // until it answers; negative: never
	err   error
	deaf  bool // it does not notice the end of the dial
}

// simulation dials the addresses of a simulated network, and notes when it has begun to dial each.
type simulation struct {
	sites   map[string]site
	started time.Time

	mu    sync.Mutex
	began map[string]time.Duration // since started
	limit map[string]time.Duration
	made  []*countedConn
}

func (s *simulation) dial(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
	here := s.sites[a.String()]
	s.mu.Lock()
	s.began[a.String()] = time.Since(s.started)
	if deadline, ok := ctx.Deadline(); ok {
		s.limit[a.String()] = time.Until(deadline)
	}
	s.mu.Unlock()
	done := ctx.Done()
	if here.deaf {
		done = nil
	}
	var answer <-chan time.Time
	if here.after >= 0 {
		answer = time.After(here.after)
	}
	select {
	case <-answer:
	case <-done:
		return nil, ctx.Err()
	}
	if here.err != nil {
		return nil, here.err
	}
	c := &countedConn{addr: a}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made = append(s.made, c)
	return c, nil
}

// The two address families are dialed in parallel. The first conn wins, and no other is left open.
func TestDialParallel(t *testing.T) {
	const (
		a1, a2 = "[::1]:1", "[::2]:1"
		b1, b2 = "127.0.0.1:1", "127.0.0.2:1"
		ms     = time.Millisecond
	)
	refused, unreachable := syscall.ECONNREFUSED, syscall.EHOSTUNREACH
	for name, tt := range map[string]struct {
		addrs   []string
		sites   map[string]site
		timeout time.Duration
		want    string
		err     error
		took    time.Duration
		began   map[string]time.Duration
	}{
		"at once": {[]string{a1, b1}, map[string]site{a1: {after: 10 * ms}, b1: {}}, 0,
			a1, nil, 10 * ms, map[string]time.Duration{a1: 0}},
		"silence": {[]string{a1, b1}, map[string]site{a1: {after: -1}, b1: {after: 10 * ms}}, 0,
			b1, nil, 310 * ms, map[string]time.Duration{a1: 0, b1: 300 * ms}},
		"refused": {[]string{a1, b1}, map[string]site{a1: {after: 10 * ms, err: refused}, b1: {after: 10 * ms}}, 0,
			b1, nil, 20 * ms, map[string]time.Duration{a1: 0, b1: 10 * ms}},
		"late, but first": {[]string{a1, b1}, map[string]site{a1: {after: 400 * ms}, b1: {after: 500 * ms}}, 0,
			a1, nil, 400 * ms, map[string]time.Duration{a1: 0, b1: 300 * ms}},
		"IPv4 first": {[]string{b1, a1}, map[string]site{b1: {}, a1: {}}, 0,
			b1, nil, 0, map[string]time.Duration{b1: 0}},
		"all fail": {[]string{a1, b1, a2, b2}, map[string]site{a1: {err: refused}, a2: {err: unreachable}, b1: {err: unreachable}, b2: {err: unreachable}}, 0,
			"", refused, 0, map[string]time.Duration{a1: 0, a2: 0, b1: 0, b2: 0}},
		"the others' fail first": {[]string{a1, b1}, map[string]site{a1: {after: 500 * ms, err: refused}, b1: {err: unreachable}}, 0,
			"", refused, 500 * ms, map[string]time.Duration{a1: 0, b1: 300 * ms}},
		"second of the others": {[]string{a1, b1, b2}, map[string]site{a1: {after: -1}, b1: {after: 5 * ms, err: refused}, b2: {after: 5 * ms}}, 0,
			b2, nil, 310 * ms, map[string]time.Duration{a1: 0, b1: 300 * ms, b2: 305 * ms}},
		"both answer": {[]string{a1, b1}, map[string]site{a1: {after: 500 * ms, deaf: true}, b1: {after: 100 * ms}}, 0,
			b1, nil, 400 * ms, map[string]time.Duration{a1: 0, b1: 300 * ms}},
		"time is over": {[]string{a1, b1}, map[string]site{a1: {after: -1}, b1: {after: -1, deaf: false}}, time.Second,
			"", context.DeadlineExceeded, time.Second, map[string]time.Duration{a1: 0, b1: 300 * ms}},
		"time is over before": {[]string{a1, b1}, map[string]site{a1: {after: time.Minute, deaf: true}}, 100 * ms,
			"", context.DeadlineExceeded, 100 * ms, map[string]time.Duration{a1: 0}},
		"the socket sees that time is over before the context does": {[]string{a1}, map[string]site{a1: {after: 99 * ms, err: os.ErrDeadlineExceeded}}, 100 * ms,
			"", context.DeadlineExceeded, 99 * ms, map[string]time.Duration{a1: 0}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &simulation{sites: tt.sites, started: time.Now(), began: map[string]time.Duration{}, limit: map[string]time.Duration{}}
				ctx := t.Context()
				if tt.timeout != 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.timeout)
					defer cancel()
				}
				primaries, others := families(ports(tt.addrs))
				nc, err := dialParallel(ctx, primaries, others, defaultFallbackDelay, s.dial)
				assert.Equal(t, tt.took, time.Since(s.started))
				require.ErrorIs(t, err, tt.err)
				if tt.want != "" {
					require.NotNil(t, nc)
					assert.Equal(t, tt.want, nc.(*countedConn).addr.String())
				}
				time.Sleep(2 * time.Minute) // for conns that come late
				synctest.Wait()
				assert.Equal(t, tt.began, s.began)
				for _, c := range s.made {
					assert.Equal(t, net.Conn(c) != nc, c.closed, "all but the one returned are closed")
				}
			})
		})
	}
}

func ports(addrs []string) (list []netip.AddrPort) {
	for _, a := range addrs {
		list = append(list, netip.MustParseAddrPort(a))
	}
	return list
}

// The addresses of one family get equal shares of the time, but no less than two seconds while as
// much is left.
func TestDialSharesTime(t *testing.T) {
	const s = time.Second
	addrs := []string{"127.0.0.1:1", "127.0.0.2:1", "127.0.0.3:1"}
	for name, tt := range map[string]struct {
		timeout time.Duration
		limits  []time.Duration
	}{
		"plenty": {30 * s, []time.Duration{10 * s, 10 * s, 10 * s}},
		"little": {5 * s, []time.Duration{2 * s, 2 * s, 1 * s}},
		"less":   {s, []time.Duration{s}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sim := &simulation{sites: map[string]site{}, started: time.Now(), began: map[string]time.Duration{}, limit: map[string]time.Duration{}}
				want := map[string]time.Duration{}
				for i, a := range addrs {
					sim.sites[a] = site{after: -1}
					if i < len(tt.limits) {
						want[a] = tt.limits[i]
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), tt.timeout)
				defer cancel()
				_, err := dialSerial(ctx, ports(addrs), sim.dial)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				assert.Equal(t, tt.timeout, time.Since(sim.started))
				assert.Equal(t, want, sim.limit)
			})
		})
	}
}

// Literal addresses need no resolver, and mean the same as in package net.
func TestLookupLiterals(t *testing.T) {
	none := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("asked")
	}}
	for _, tt := range []struct {
		network, host, port string
		local               net.Addr
		want                []string
	}{
		{"tcp", "127.0.0.1", "80", nil, []string{"127.0.0.1:80"}},
		{"tcp", "127.0.0.1", "http", nil, []string{"127.0.0.1:80"}},
		{"tcp", "::ffff:10.0.0.1", "80", nil, []string{"10.0.0.1:80"}},
		{"tcp4", "::ffff:10.0.0.1", "80", nil, []string{"10.0.0.1:80"}},
		{"tcp", "", "80", nil, []string{"127.0.0.1:80", "[::1]:80"}},
		{"tcp", "0.0.0.0", "80", nil, []string{"127.0.0.1:80", "[::1]:80"}},
		{"tcp", "::", "80", nil, []string{"[::1]:80", "127.0.0.1:80"}},
		{"tcp6", "", "80", nil, []string{"[::1]:80"}},
		{"tcp", "", "80", &net.TCPAddr{IP: net.IPv6loopback}, []string{"[::1]:80"}},
		{"tcp", "", "80", &net.TCPAddr{IP: net.IPv4zero, Port: 7}, []string{"127.0.0.1:80", "[::1]:80"}},
		{"tcp", "", "80", &net.TCPAddr{Port: 7}, []string{"127.0.0.1:80", "[::1]:80"}},
		{"tcp", "::1%lo", "80", nil, []string{"[::1]:80"}},
		{"tcp4", "::1", "80", nil, nil},
		{"tcp6", "127.0.0.1", "80", nil, nil},
		{"tcp", "::1", "80", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, nil},
	} {
		p := &plan{Dialer: &Dialer{Resolver: none, LocalAddr: tt.local}, network: tt.network, host: tt.host, port: tt.port}
		list, err := p.lookup(t.Context())
		if tt.want == nil {
			var ae *net.AddrError
			assert.ErrorAs(t, err, &ae, "%+v", tt)
			assert.ErrorContains(t, err, "no suitable address")
			continue
		}
		require.NoError(t, err, "%+v", tt)
		assert.Equal(t, ports(tt.want), list, "%+v", tt)
	}
}

func TestNamesAreBounded(t *testing.T) {
	tr := transportOr(new(Transport))
	for i := range 2 * maxNames {
		address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(i+1)).String()
		p := &plan{Dialer: new(Dialer), t: tr, network: "tcp", host: "127.0.0.1", port: address[len("127.0.0.1:"):], name: nameKey{"tcp", address, nil, 0}}
		require.NoError(t, p.resolve(t.Context()))
		assert.LessOrEqual(t, len(tr.links.names), maxNames)
	}
}

// An interface is the same whether it is given by name or by number.
func TestZones(t *testing.T) {
	lo, err := net.InterfaceByIndex(1)
	require.NoError(t, err)
	for in, want := range map[string]string{
		"fe80::1":            "fe80::1",
		"fe80::1%1":          "fe80::1%" + lo.Name,
		"fe80::1%01":         "fe80::1%" + lo.Name,
		"fe80::1%" + lo.Name: "fe80::1%" + lo.Name,
		"fe80::1%999999999":  "fe80::1%999999999",
		"fe80::1%nosuch":     "fe80::1%nosuch",
		"fe80::1%-1":         "fe80::1%-1",
		"::1%1":              "::1", // as the kernel has it in the conn's addresses
		"fd00::1%nosuch":     "fd00::1",
		"::ffff:127.0.0.1":   "127.0.0.1",
		"127.0.0.1":          "127.0.0.1",
	} {
		assert.Equal(t, want, canonical(netip.MustParseAddr(in)).String(), in)
		if ip := netip.MustParseAddr(in); ip.Is6() {
			a := newAddr(&net.TCPAddr{IP: ip.AsSlice(), Zone: ip.Zone(), Port: 1})
			assert.Equal(t, netip.AddrPortFrom(netip.MustParseAddr(want), 1).String(), a.String(), in)
		}
	}
	assert.Equal(t, netip.Addr{}, canonical(netip.Addr{}))
	assert.Equal(t, lo.Name, zoneOf("[fe80::1%1]:80"))
	assert.Empty(t, zoneOf("[::1%1]:80"))
	assert.Empty(t, zoneOf("localhost:80"))
	for host, want := range map[string]string{"fe80::1%1": "fe80::1", "FE80::1": "fe80::1", "host": "host", "10.0.0.1": "10.0.0.1", "": ""} {
		assert.Equal(t, want, serverName(host))
	}
	for in, want := range map[string]string{
		"[fe80::1]:1":    "[fe80::1%eth7]:1",
		"[fe80::1%lo]:1": "[fe80::1%lo]:1",
		"[::1]:1":        "[::1]:1",
		"[::]:1":         "[::]:1",
		"127.0.0.1:1":    "127.0.0.1:1",
		"169.254.0.1:1":  "169.254.0.1:1",
	} {
		assert.Equal(t, want, inZone(netip.MustParseAddrPort(in), "eth7").String())
	}
	assert.Equal(t, lo.Name, onlyZone(netip.IPv6Loopback()))
	assert.Empty(t, onlyZone(netip.MustParseAddr("fe80::dead:beef:dead:beef")))
}
