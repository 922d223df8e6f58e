package rdmanet_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// faulty is a fabric on which one provider writes a byte too few, for as long as spoils
// is set.
type faulty struct {
	*simfabric.Network
	provider string
	spoils   *atomic.Bool
}

func (f faulty) Open(name string, src netip.Addr) (fabric.Endpoint, error) {
	ep, err := f.Network.Open(name, src)
	if provider, _ := fabric.Split(name); err == nil && provider == f.provider {
		ep = spoiler{ep, f.spoils}
	}
	return ep, err
}

type spoiler struct {
	fabric.Endpoint
	spoils *atomic.Bool
}

func (s spoiler) Exchange(ops []fabric.Op, done []fabric.Completion) (int, int, error) {
	ops = slices.Clone(ops)
	for i, op := range ops {
		if (op.Kind == fabric.Write || op.Kind == fabric.WriteData) && s.spoils.Load() {
			ops[i].Buf = op.Buf[:len(op.Buf)-1]
		}
	}
	return s.Endpoint.Exchange(ops, done)
}

func both(first simfabric.Personality) *simfabric.Network {
	return simfabric.New(simfabric.Config{Seed: 1, Personality: first, Others: []simfabric.Personality{simfabric.TCP()}})
}

// dialFresh dials without reusing a control connection, closes the conn, and returns its info and how
// long the dial took.
func dialFresh(t *testing.T, d rdmanet.Dialer, address string) (info rdmanet.ConnInfo, took time.Duration) {
	t.Helper()
	d.DisableReuse = true
	begin := time.Now()
	c, err := d.Dial("rdma", address)
	require.NoError(t, err)
	took = time.Since(begin)
	info = rdmatest.InfoOf(t, c)
	require.NoError(t, c.Close())
	return info, took
}

// TestSilentProviderIsPassedOver: a provider that never reports what has arrived costs a second
// once, and then nothing for as long as that is remembered.
func TestSilentProviderIsPassedOver(t *testing.T) {
	n := both(simfabric.Silent())
	here, there := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
	rdmatest.Cleanly(t, here)
	defer there.Close()
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
	var peer rdmanet.ConnInfo
	accepted := make(chan struct{}, 2)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			peer = c.(*rdmanet.Conn).Info()
			accepted <- struct{}{}
			c.Close()
		}
	}()
	d := rdmanet.Dialer{Transport: here}
	info, took := dialFresh(t, d, l.Addr().String())
	<-accepted
	for _, i := range []rdmanet.ConnInfo{info, peer} {
		assert.Equal(t, "tcp;ofi_rxm", i.Provider)
		assert.Contains(t, fmt.Sprint(i.Refused), "the fabric is silent, though the peer answers over TCP")
	}
	assert.GreaterOrEqual(t, took, time.Second)
	assert.Less(t, took, 4*time.Second, "not half of ten seconds")
	info, took = dialFresh(t, d, l.Addr().String())
	<-accepted
	assert.Equal(t, "tcp;ofi_rxm", info.Provider)
	assert.Less(t, took, time.Second)
	assert.Contains(t, fmt.Sprint(info.Refused), "tried again in")
	assert.Equal(t, map[string]uint64{"verbs;ofi_rxm": 1}, here.Stats().PathFailures)
}

// TestWrongContentsArePassedOver: wrong contents are noticed at once and remembered. The provider is
// used again when that time is over and it works.
func TestWrongContentsArePassedOver(t *testing.T) {
	f := faulty{both(simfabric.Verbs()), "verbs;ofi_rxm", new(atomic.Bool)}
	f.spoils.Store(true)
	here, there := rdmanet.NewTransport(f), rdmanet.NewTransport(f)
	here.FailureMemory = 500 * time.Millisecond
	rdmatest.Cleanly(t, here)
	defer there.Close()
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, Backlog: 1 << 20})
	d := rdmanet.Dialer{Transport: here}
	info, _ := dialFresh(t, d, l.Addr().String())
	assert.Equal(t, "tcp;ofi_rxm", info.Provider)
	assert.Contains(t, fmt.Sprint(info.Refused), "the fabric delivers wrong contents")
	assert.Equal(t, map[string]uint64{"verbs;ofi_rxm": 1}, here.Stats().PathFailures)
	f.spoils.Store(false)
	rdmatest.Eventually(t, func() bool {
		info, _ := dialFresh(t, d, l.Addr().String())
		return info.Provider == "verbs;ofi_rxm"
	}, "it is tried again")
	assert.Equal(t, map[string]uint64{"verbs;ofi_rxm": 1}, here.Stats().PathFailures)
}

// TestOnlyProviderIsTriedAgain: a remembered failure does not keep a dial from trying the only
// provider, unless that dial has TCP as an alternative.
func TestOnlyProviderIsTriedAgain(t *testing.T) {
	f := faulty{simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.TCP()}), "tcp;ofi_rxm", new(atomic.Bool)}
	f.spoils.Store(true)
	here, there := rdmanet.NewTransport(f), rdmanet.NewTransport(f)
	rdmatest.Cleanly(t, here)
	defer there.Close()
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, AcceptTCP: true})
	d := rdmanet.Dialer{Transport: here}
	for range 2 {
		_, err := d.Dial("rdma", l.Addr().String())
		require.ErrorIs(t, err, rdmanet.ErrNoProvider)
		require.ErrorContains(t, err, "wrong contents")
	}
	d.Fallback = rdmanet.FallbackTCP
	c, err := d.Dial("rdma", l.Addr().String())
	require.NoError(t, err)
	assert.ErrorContains(t, rdmatest.InfoOf(t, c).Fallback, "tried again in")
	require.NoError(t, c.Close())
	assert.EqualValues(t, 2, here.Stats().PathFailures["tcp;ofi_rxm"])
	f.spoils.Store(false)
	d.Fallback = rdmanet.FallbackNone
	info, _ := dialFresh(t, d, l.Addr().String())
	assert.Equal(t, "tcp;ofi_rxm", info.Provider)
}

// mute is a fabric whose endpoints take everything that is sent and pass nothing on.
type mute struct{ *simfabric.Network }

func (m mute) Open(name string, src netip.Addr) (fabric.Endpoint, error) {
	ep, err := m.Network.Open(name, src)
	return muted{ep}, err
}

type muted struct{ fabric.Endpoint }

func (m muted) Exchange(ops []fabric.Op, done []fabric.Completion) (int, int, error) {
	receives := slices.DeleteFunc(slices.Clone(ops), func(op fabric.Op) bool { return op.Kind != fabric.Recv })
	n, got, err := m.Endpoint.Exchange(receives, done)
	if n == len(receives) {
		n = len(ops)
	} else {
		n = 0
	}
	return n, got, err
}

// TestFailureOfAnotherListener: a listener on which the fabric fails, as it can have it do, says
// nothing of another one at the same IP address.
func TestFailureOfAnotherListener(t *testing.T) {
	spoils := new(atomic.Bool)
	spoils.Store(true)
	for name, bad := range map[string]func(*simfabric.Network) fabric.Fabric{
		"wrong contents": func(n *simfabric.Network) fabric.Fabric { return faulty{n, "tcp;ofi_rxm", spoils} },
		"silence":        func(n *simfabric.Network) fabric.Fabric { return mute{n} },
	} {
		t.Run(name, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.TCP()})
			here, there, hostile := rdmanet.NewTransport(n), rdmanet.NewTransport(n), rdmanet.NewTransport(bad(n))
			rdmatest.Cleanly(t, here)
			defer there.Close()
			defer hostile.Close()
			trap := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: hostile, AcceptTCP: true}).Addr().String()
			good := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, AcceptTCP: true}).Addr().String()
			d := rdmanet.Dialer{Transport: here, Fallback: rdmanet.FallbackTCP}
			info, _ := dialFresh(t, d, trap)
			require.Error(t, info.Fallback)
			info, _ = dialFresh(t, d, good)
			assert.NoError(t, info.Fallback)
			assert.Equal(t, "tcp;ofi_rxm", info.Provider)

			info, _ = dialFresh(t, d, trap)
			assert.ErrorContains(t, info.Fallback, "tried again in")
			assert.EqualValues(t, 1, here.Stats().PathFailures["tcp;ofi_rxm"])
		})
	}
}

// TestFailureOfOtherDialers: a failure counts for dials that could have shared the control connection,
// or could if they were of one Dialer.
func TestFailureOfOtherDialers(t *testing.T) {
	f := faulty{simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.TCP()}), "tcp;ofi_rxm", new(atomic.Bool)}
	f.spoils.Store(true)
	here, there := rdmanet.NewTransport(f), rdmanet.NewTransport(f)
	rdmatest.Cleanly(t, here)
	defer there.Close()
	address := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, AcceptTCP: true}).Addr().String()
	for i, d := range []rdmanet.Dialer{
		{},
		{Providers: []string{"tcp;ofi_rxm"}},
		{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}},
		{Providers: []string{"tcp;ofi_rxm"}, Resolver: new(net.Resolver)}, // known
	} {
		d.Transport, d.Fallback, d.DisableReuse = here, rdmanet.FallbackTCP, true
		for range 2 {
			c, err := d.Dial("rdma", address)
			require.NoError(t, err)
			assert.ErrorIs(t, rdmatest.InfoOf(t, c).Fallback, rdmanet.ErrNoProvider)
			require.NoError(t, c.Close())
		}
		assert.EqualValues(t, min(i+1, 3), here.Stats().PathFailures["tcp;ofi_rxm"])
	}
}

// TestForeignListenerIsRemembered: that something else listens at an address is found out once, not in
// each Dial, even for programs that clone their TLSConfig for each.
func TestForeignListenerIsRemembered(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	address := silent(t)
	cfg := &tls.Config{ServerName: "x", MinVersion: tls.VersionTLS13}
	d := rdmanet.Dialer{Transport: tr, Fallback: rdmanet.FallbackTCP, TLSConfig: cfg, AllowInsecureFallback: true}
	info, first := dialFresh(t, d, address)
	require.ErrorIs(t, info.Fallback, rdmanet.ErrHandshakeTimeout)
	assert.GreaterOrEqual(t, first, 2*time.Second)
	for range 3 {
		d.TLSConfig = cfg.Clone()
		info, took := dialFresh(t, d, address)
		require.ErrorIs(t, info.Fallback, rdmanet.ErrHandshakeTimeout)
		assert.Less(t, took, time.Second)
	}
	assert.EqualValues(t, 4, tr.Stats().Fallbacks["timeout"])
	assert.EqualValues(t, 1, tr.Stats().HandshakeFailures["timeout"])
}

// gate passes connections on to an address. While it is shut it only accepts them, as the
// kernel does for a process that is busy.
type gate struct {
	net.Listener
	shut atomic.Bool
}

func newGate(t *testing.T, to string) *gate {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := &gate{Listener: ln}
	var open sync.WaitGroup
	var conns []net.Conn
	open.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				break
			}
			conns = append(conns, in)
			if g.shut.Load() {
				continue
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				break
			}
			conns = append(conns, out)
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				open.Go(func() {
					// OnlyReader avoids splice(2), whose pipes stay open until they are garbage-collected.
					_, _ = io.Copy(way[0], rdmatest.OnlyReader{Reader: way[1]})
					_ = way[0].Close()
				})
			}
		}
		for _, c := range conns {
			_ = c.Close()
		}
	})
	t.Cleanup(func() { _ = ln.Close(); open.Wait() })
	return g
}

// meetBusy makes a dial meet a listener that is busy for longer than the dial waits.
func meetBusy(t *testing.T, tr *rdmanet.Transport, g *gate, timeout time.Duration) {
	g.shut.Store(true)
	defer g.shut.Store(false)
	info, _ := dialFresh(t, rdmanet.Dialer{Transport: tr, Fallback: rdmanet.FallbackTCP, Timeout: timeout}, g.Addr().String())
	require.ErrorIs(t, info.Fallback, rdmanet.ErrHandshakeTimeout)
}

// atTheName listens for TCP connections at 127.0.0.1 and for peers at 127.0.0.2, at the same port, and
// resolves theName to the first.
func atTheName(t *testing.T, tr *rdmanet.Transport) (s *nameServer, address string) {
	l1, _, port := listenAtBoth(t, rdmanet.ListenConfig{Transport: tr}, rdmanet.ListenConfig{Transport: tr})
	require.NoError(t, l1.Close())
	ln, err := net.Listen("tcp", l1.Addr().String()) // nothing is accepted, so nothing is said
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	return newNameServer(t, "127.0.0.1"), net.JoinHostPort(theName, port)
}

// TestForeignAddressOfName: what answered at one address of a name says nothing of another one.
func TestForeignAddressOfName(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	s, address := atTheName(t, tr)
	d := &rdmanet.Dialer{Transport: tr, Resolver: s.resolver(), Fallback: rdmanet.FallbackTCP, DisableReuse: true}
	dial := func() rdmanet.ConnInfo {
		c, err := d.Dial("rdma", address)
		require.NoError(t, err)
		defer c.Close()
		return rdmatest.InfoOf(t, c)
	}
	for _, addrs := range [][]string{{"127.0.0.1"}, {"127.0.0.1"}, {"127.0.0.1", "127.0.0.3"}} {
		s.change(addrs...)
		require.ErrorIs(t, dial().Fallback, rdmanet.ErrHandshakeTimeout)
	}
	assert.EqualValues(t, 1, tr.Stats().HandshakeFailures["timeout"], "then it is known, also beside others")
	s.change("127.0.0.2")
	info := dial()
	assert.NoError(t, info.Fallback)
	assert.Equal(t, "tcp;ofi_rxm", info.Provider)
}

// sockets are those that a Dialer makes.
type sockets struct {
	mu   sync.Mutex
	list []syscall.RawConn
}

func (s *sockets) control(_, _ string, c syscall.RawConn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, c)
	return nil
}

// count returns how many sockets were made since it was called last, and how many of these are open.
func (s *sockets) count() (made, open int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.list {
		if c.Control(func(uintptr) {}) == nil {
			open++
		}
	}
	made, s.list = len(s.list), nil
	return made, open
}

// atOneOf returns a Dialer, the sockets that it makes, and a name with two addresses, of which a plain
// server has the first.
func atOneOf(t *testing.T) (d *rdmanet.Dialer, s *sockets, address string) {
	_, port, err := net.SplitHostPort(plainServer(t, banner))
	require.NoError(t, err)
	s = new(sockets)
	return &rdmanet.Dialer{
		Transport: simulated(t, simfabric.TCP()), Resolver: newNameServer(t, "127.0.0.1", "127.0.0.2").resolver(),
		Fallback: rdmanet.FallbackTCP, Control: s.control, Timeout: rdmatest.Patience,
	}, s, net.JoinHostPort(theName, port)
}

// TestKnownForeignIsConnectedToOnce: a dial that finds out by its connection that it has reached an
// address where something else listens uses that connection for the fallback.
func TestKnownForeignIsConnectedToOnce(t *testing.T) {
	for _, disableReuse := range []bool{false, true} {
		t.Run(fmt.Sprintf("DisableReuse %v", disableReuse), func(t *testing.T) {
			d, s, address := atOneOf(t)
			d.DisableReuse = disableReuse
			for _, want := range []int{2, 1, 1} {
				c, err := d.Dial("rdma", address)
				require.NoError(t, err)
				assert.ErrorIs(t, rdmatest.InfoOf(t, c).Fallback, rdmanet.ErrNotRdmanet)
				got := make([]byte, len(banner))
				_, err = io.ReadFull(c, got)
				require.NoError(t, err)
				assert.Equal(t, banner, string(got))
				made, open := s.count()
				assert.Equal(t, want, made)
				assert.Equal(t, 1, open)
				require.NoError(t, c.Close())
			}
		})
	}
}

// TestKnownForeignWithoutFallback: if such a dial does not fall back, it closes its connection.
func TestKnownForeignWithoutFallback(t *testing.T) {
	d, s, address := atOneOf(t)
	d.TLSConfig = &tls.Config{}
	for range 2 {
		_, err := d.Dial("rdma", address)
		require.ErrorIs(t, err, rdmanet.ErrNotRdmanet)
		require.ErrorContains(t, err, "AllowInsecureFallback")
		made, open := s.count()
		assert.Equal(t, 1, made)
		assert.Zero(t, open)
	}
}

// TestKnownForeignIsMetTooLate: if such a dial was given up, and others wait for what it has begun, its
// connection is closed.
func TestKnownForeignIsMetTooLate(t *testing.T) {
	d, s, address := atOneOf(t)
	reached, goOn := make(chan struct{}), make(chan struct{})
	var held sync.Once
	var hold atomic.Bool
	d.Control = func(network, address string, c syscall.RawConn) error {
		if hold.Load() {
			held.Do(func() { close(reached); <-goOn })
		}
		return s.control(network, address, c)
	}
	c, err := d.Dial("rdma", address)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	s.count()

	hold.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first, second := make(chan error, 1), make(chan net.Conn, 1)
	go func() {
		_, err := d.DialContext(ctx, "rdma", address)
		first <- err
	}()
	<-reached
	go func() {
		c, err := d.Dial("rdma", address)
		assert.NoError(t, err)
		second <- c
	}()
	rdmatest.Eventually(t, func() bool { return d.Transport.Waiters() == 2 }, "another dial waits")
	cancel()
	require.ErrorIs(t, <-first, context.Canceled)
	close(goOn)
	c = <-second
	require.NotNil(t, c)
	made, open := s.count()
	assert.Equal(t, 2, made)
	assert.Equal(t, 1, open)
	require.NoError(t, c.Close())
}

// TestHurriedDialIsNotRemembered: a dial that had little time proves nothing about the listener to dials that have more.
func TestHurriedDialIsNotRemembered(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	g := newGate(t, rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr}).Addr().String())
	meetBusy(t, tr, g, 400*time.Millisecond)
	info, _ := dialFresh(t, rdmanet.Dialer{Transport: tr, Fallback: rdmanet.FallbackTCP}, g.Addr().String())
	assert.NoError(t, info.Fallback)
	assert.Equal(t, "tcp;ofi_rxm", info.Provider)
}

// TestForeignAddressWithPeer: a dial that can reuse a peer ignores what is remembered of its address.
func TestForeignAddressWithPeer(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	g := newGate(t, rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr}).Addr().String())
	d := rdmanet.Dialer{Transport: tr, Fallback: rdmanet.FallbackTCP}
	first, err := d.Dial("rdma", g.Addr().String())
	require.NoError(t, err)
	defer first.Close()
	meetBusy(t, tr, g, 0)
	second, err := d.Dial("rdma", g.Addr().String())
	require.NoError(t, err)
	defer second.Close()
	info := rdmatest.InfoOf(t, second)
	assert.NoError(t, info.Fallback)
	assert.True(t, info.Reused)
}
