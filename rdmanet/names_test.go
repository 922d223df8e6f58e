package rdmanet_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// nameServer answers every question about the only name that it knows.
type nameServer struct {
	conn net.PacketConn

	mu    sync.Mutex
	addrs []netip.Addr
	asked int // for IPv4 addresses: each look-up asks for them once
}

const theName = "server.test"

func newNameServer(t *testing.T, addrs ...string) *nameServer {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &nameServer{conn: conn}
	s.change(addrs...)
	var served sync.WaitGroup
	served.Go(s.serve)
	t.Cleanup(func() { conn.Close(); served.Wait() })
	return s
}

// change gives the name other addresses.
func (s *nameServer) change(addrs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addrs = nil
	for _, a := range addrs {
		s.addrs = append(s.addrs, netip.MustParseAddr(a))
	}
}

// lookups returns how often the name was looked up since the last call.
func (s *nameServer) lookups() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.asked
	s.asked = 0
	return n
}

func (s *nameServer) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", s.conn.LocalAddr().String())
	}}
}

func (s *nameServer) serve() {
	buf := make([]byte, 1500)
	for {
		n, from, err := s.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		s.answer(&m)
		if packed, err := m.Pack(); err == nil {
			_, _ = s.conn.WriteTo(packed, from)
		}
	}
}

func (s *nameServer) answer(m *dnsmessage.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := m.Questions[0]
	m.Header = dnsmessage.Header{ID: m.ID, Response: true, Authoritative: true}
	m.Additionals = nil
	if q.Name.String() != theName+"." {
		m.RCode = dnsmessage.RCodeNameError
		return
	}
	if q.Type == dnsmessage.TypeA {
		s.asked++
	}
	for _, a := range s.addrs {
		h := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}
		switch {
		case a.Is4() && q.Type == dnsmessage.TypeA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}})
		case a.Is6() && q.Type == dnsmessage.TypeAAAA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
}

// listenAtBoth listens at 127.0.0.1 and 127.0.0.2 with the same port. A port that is free at one of
// them may be taken at the other, by a socket of another test that dials from there. Then it tries
// another one.
func listenAtBoth(t *testing.T, lc1, lc2 rdmanet.ListenConfig) (l1, l2 *rdmanet.Listener, port string) {
	t.Helper()
	for range 10 {
		l1, port = rdmatest.ListenAt(t, lc1, "127.0.0.1:0")
		ln, err := lc2.Listen(t.Context(), "rdma", net.JoinHostPort("127.0.0.2", port))
		if errors.Is(err, syscall.EADDRINUSE) {
			require.NoError(t, l1.Close())
			continue
		}
		require.NoError(t, err)
		t.Cleanup(func() { ln.Close() })
		return l1, ln.(*rdmanet.Listener), port
	}
	require.Fail(t, "no port is free at both addresses")
	return nil, nil, ""
}

// remote is visit, but returns the host of the conn's remote address.
func remote(t *testing.T, d *rdmanet.Dialer, l *rdmanet.Listener, address string) string {
	t.Helper()
	c, err := d.Dial("rdma", address)
	require.NoError(t, err)
	rdmatest.CloseAll(t, c, rdmatest.Accept(t, l))
	host, _, err := net.SplitHostPort(c.RemoteAddr().String())
	require.NoError(t, err)
	return host
}

func TestNamesAreResolvedOnce(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	s := newNameServer(t, "127.0.0.1")
	l, port := rdmatest.ListenAt(t, rdmanet.ListenConfig{Transport: tr}, "127.0.0.1:0")
	address := net.JoinHostPort(theName, port)
	d := &rdmanet.Dialer{Transport: tr, Resolver: s.resolver()}
	assert.False(t, rdmatest.Visit(t, d, l, "rdma", address).Reused)
	assert.Equal(t, 1, s.lookups(), "the first dial")
	for range 5 {
		assert.True(t, rdmatest.Visit(t, d, l, "rdma", address).Reused)
	}
	assert.Zero(t, s.lookups(), "its peer is known")

	tr.AgeNames(29 * time.Second)
	assert.True(t, rdmatest.Visit(t, d, l, "rdma", address).Reused)
	assert.Zero(t, s.lookups())
	tr.AgeNames(2 * time.Second)
	assert.True(t, rdmatest.Visit(t, d, l, "rdma", address).Reused, "the address is still one of the name's")
	assert.Equal(t, 1, s.lookups(), "names expire")
	assert.True(t, rdmatest.Visit(t, d, l, "rdma", address).Reused)
	assert.Zero(t, s.lookups())

	tr.CloseIdle()
	rdmatest.Eventually(t, func() bool { return tr.Stats().Peers == 0 }, "the peer goes")
	assert.False(t, rdmatest.Visit(t, d, l, "rdma", address).Reused)
	assert.Equal(t, 1, s.lookups(), "without a peer there is nothing to reuse")

	alone := &rdmanet.Dialer{Transport: tr, Resolver: s.resolver(), DisableReuse: true}
	for range 2 {
		assert.False(t, rdmatest.Visit(t, alone, l, "rdma", address).Reused)
		assert.Equal(t, 1, s.lookups(), "DisableReuse")
	}
	assert.True(t, rdmatest.Visit(t, d, l, "rdma4", address).Reused, "of another network")
	assert.Equal(t, 1, s.lookups())
}

func TestNamesOfConcurrentDials(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	s := newNameServer(t, "127.0.0.1")
	l, port := rdmatest.ListenAt(t, rdmanet.ListenConfig{Transport: tr}, "127.0.0.1:0")
	d := &rdmanet.Dialer{Transport: tr, Resolver: s.resolver()}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			c, err := d.Dial("rdma", net.JoinHostPort(theName, port))
			if assert.NoError(t, err) {
				assert.NoError(t, c.Close())
			}
		})
	}
	for range 8 {
		rdmatest.CloseAll(t, rdmatest.Accept(t, l))
	}
	wg.Wait()
	assert.Equal(t, 2, tr.Stats().Peers, "one handshake")
}

// A name that moves is followed once it has expired, and conns that exist by then are left alone.
func TestNamesMove(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	s := newNameServer(t, "127.0.0.1")
	lc := rdmanet.ListenConfig{Transport: tr}
	first, second, port := listenAtBoth(t, lc, lc)
	d := &rdmanet.Dialer{Transport: tr, Resolver: s.resolver()}
	address := net.JoinHostPort(theName, port)
	c, err := d.Dial("rdma", address)
	require.NoError(t, err)
	kept := rdmatest.Accept(t, first)

	s.change("127.0.0.2")
	assert.Equal(t, "127.0.0.1", remote(t, d, first, address))
	tr.AgeNames(time.Minute)
	assert.Equal(t, "127.0.0.2", remote(t, d, second, address))
	s.change()
	tr.AgeNames(time.Minute)
	_, err = d.Dial("rdma", address)
	var de *net.DNSError
	require.ErrorAs(t, err, &de)
	assert.True(t, de.IsNotFound)
	rdmatest.Echo(t, c, kept)
	rdmatest.CloseAll(t, c, kept)
}

// If an old answer no longer leads anywhere, the name is resolved again before the next try.
func TestNamesOfReplacedPeers(t *testing.T) {
	n := simfabric.New(simfabric.Config{Personality: simfabric.TCP()})
	here, there, elsewhere := rdmanet.NewTransport(n), rdmanet.NewTransport(n), rdmanet.NewTransport(n)
	rdmatest.Cleanly(t, here)
	defer elsewhere.Close()
	s := newNameServer(t, "127.0.0.1")
	first, second, port := listenAtBoth(t, rdmanet.ListenConfig{Transport: there}, rdmanet.ListenConfig{Transport: elsewhere})
	d := &rdmanet.Dialer{Transport: here, Resolver: s.resolver()}
	address := net.JoinHostPort(theName, port)
	assert.Equal(t, "127.0.0.1", remote(t, d, first, address))
	s.change("127.0.0.2")
	require.NoError(t, there.Close())
	assert.Equal(t, "127.0.0.2", remote(t, d, second, address))
	assert.Equal(t, 2, s.lookups())
}

// All addresses of a name are tried, and the control connection is to the one that answers.
func TestNamesWithSeveralAddresses(t *testing.T) {
	for name, tt := range map[string]struct {
		addrs           []string
		network, listen string
		local           net.Addr
		delay           time.Duration
		want            string
	}{
		"IPv4 answers":      {[]string{"::1", "127.0.0.1"}, "rdma", "127.0.0.1:0", nil, 0, "127.0.0.1"},
		"IPv6 answers":      {[]string{"::1", "127.0.0.1"}, "rdma", "[::1]:0", nil, 0, "::1"},
		"one by one":        {[]string{"::1", "127.0.0.1"}, "rdma", "127.0.0.1:0", nil, -1, "127.0.0.1"},
		"the second":        {[]string{"127.9.0.1", "127.9.0.2"}, "rdma", "127.9.0.2:0", nil, 0, "127.9.0.2"}, // no other test has the port at the first
		"IPv4 is asked for": {[]string{"::1", "127.0.0.1"}, "rdma4", "127.0.0.1:0", nil, 0, "127.0.0.1"},
		"IPv6 is asked for": {[]string{"::1", "127.0.0.1"}, "rdma6", "[::1]:0", nil, 0, "::1"},
		"LocalAddr":         {[]string{"::1", "127.0.0.1"}, "rdma", "127.0.0.1:0", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 3)}, 0, "127.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := simulated(t, simfabric.TCP())
			s := newNameServer(t, tt.addrs...)
			l, port := rdmatest.ListenAt(t, rdmanet.ListenConfig{Transport: tr}, tt.listen)
			d := &rdmanet.Dialer{Transport: tr, Resolver: s.resolver(), FallbackDelay: tt.delay, LocalAddr: tt.local, Timeout: rdmatest.Patience}
			c, err := d.Dial(tt.network, net.JoinHostPort(theName, port))
			require.NoError(t, err)
			assert.Equal(t, net.JoinHostPort(tt.want, port), c.RemoteAddr().String())
			assert.LessOrEqual(t, s.lookups(), 1)
			server := rdmatest.Accept(t, l)
			rdmatest.Echo(t, c, server)
			rdmatest.CloseAll(t, c, server)
		})
	}
	t.Run("none that suits", func(t *testing.T) {
		tr := simulated(t, simfabric.TCP())
		s := newNameServer(t, "127.0.0.1")
		d := &rdmanet.Dialer{Transport: tr, Resolver: s.resolver(), LocalAddr: &net.TCPAddr{IP: net.IPv6loopback}}
		_, err := d.Dial("rdma", net.JoinHostPort(theName, "1"))
		var ae *net.AddrError
		require.ErrorAs(t, err, &ae)
	})
}

// A fallback dials the addresses that have been looked up already.
func TestNamesInFallback(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	s := newNameServer(t, "127.0.0.1")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("220 not rdmanet\r\n"))
			defer c.Close()
		}
	}()
	_, port, err := net.SplitHostPort(ln.Addr().String())
	require.NoError(t, err)
	d := &rdmanet.Dialer{Transport: tr, Resolver: s.resolver(), Fallback: rdmanet.FallbackTCP}
	for range 2 { // the second dial knows what answers there
		c, err := d.Dial("rdma", net.JoinHostPort(theName, port))
		require.NoError(t, err)
		require.NoError(t, c.Close())
		assert.Equal(t, 1, s.lookups())
	}
	assert.EqualValues(t, 1, tr.Stats().HandshakeFailures["not rdmanet"])
}

func TestResolverEnds(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	stuck := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	d := &rdmanet.Dialer{Transport: tr, Resolver: stuck, Timeout: 20 * time.Millisecond}
	_, err := d.Dial("rdma", net.JoinHostPort(theName, "1"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	_, err = (&rdmanet.Dialer{Transport: tr, Resolver: stuck}).DialContext(ctx, "rdma", net.JoinHostPort(theName, "1"))
	require.ErrorIs(t, err, context.Canceled)
	time.AfterFunc(20*time.Millisecond, func() { tr.Close() })
	_, err = (&rdmanet.Dialer{Transport: tr, Resolver: stuck}).Dial("rdma", net.JoinHostPort(theName, "1"))
	require.ErrorIs(t, err, net.ErrClosed)
}

func TestDialerControl(t *testing.T) {
	type call struct{ hook, network, address string }
	type key struct{}
	var calls []call
	control := func(network, address string, c syscall.RawConn) error {
		calls = append(calls, call{"Control", network, address})
		return c.Control(func(fd uintptr) { assert.NotZero(t, fd) })
	}
	controlContext := func(ctx context.Context, network, address string, c syscall.RawConn) error {
		assert.Equal(t, "yes", ctx.Value(key{}))
		calls = append(calls, call{"ControlContext", network, address})
		return c.Control(func(fd uintptr) { assert.NotZero(t, fd) })
	}
	tr := simulated(t, simfabric.TCP())
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
	address := l.Addr().String()
	dial := func(d *rdmanet.Dialer) bool {
		c, err := d.DialContext(context.WithValue(t.Context(), key{}, "yes"), "rdma", address)
		require.NoError(t, err)
		rdmatest.CloseAll(t, c, rdmatest.Accept(t, l))
		return c.(*rdmanet.Conn).Info().Reused
	}
	one := &rdmanet.Dialer{Transport: tr, Control: control}
	assert.False(t, dial(one))
	assert.Equal(t, []call{{"Control", "tcp4", address}}, calls)
	assert.True(t, dial(one), "its own peer")
	assert.Len(t, calls, 1)
	plain := &rdmanet.Dialer{Transport: tr}
	assert.False(t, dial(plain), "shared with nobody")
	assert.True(t, dial(&rdmanet.Dialer{Transport: tr}))
	assert.Len(t, calls, 1)
	other := &rdmanet.Dialer{Transport: tr, Control: control, ControlContext: controlContext}
	assert.False(t, dial(other))
	assert.True(t, dial(other))
	assert.Equal(t, call{"ControlContext", "tcp4", address}, calls[1])
	assert.Len(t, calls, 2)
	assert.False(t, dial(&rdmanet.Dialer{Transport: tr, Resolver: new(net.Resolver)}))

	no := errors.New("no")
	_, err := (&rdmanet.Dialer{Transport: tr, Control: func(string, string, syscall.RawConn) error { return no }}).Dial("rdma", address)
	require.ErrorIs(t, err, no)
}
