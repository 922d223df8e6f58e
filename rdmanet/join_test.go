package rdmanet_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net/netip"
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

// twoProcesses returns two Transports on one simulated fabric.
func twoProcesses(t *testing.T) (here, there *rdmanet.Transport) {
	t.Helper()
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.TCP()})
	here, there = rdmanet.NewTransport(n), rdmanet.NewTransport(n)
	rdmatest.Cleanly(t, here, there)
	return here, there
}

// TestSharedLinkOutlivesListeners: two listeners of one process share a control connection, and
// whichever of them is closed, nothing changes for the other.
func TestSharedLinkOutlivesListeners(t *testing.T) {
	for name, closes := range map[string]int{"the first": 0, "the second": 1} {
		t.Run(name, func(t *testing.T) {
			here, there := twoProcesses(t)
			d := &rdmanet.Dialer{Transport: here}
			var l [2]*rdmanet.Listener
			var c, s [2]*rdmanet.Conn
			for i := range l {
				l[i] = rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
				c[i], s[i] = rdmatest.Meet(t, d, l[i])
				assert.Equal(t, i > 0, c[i].Info().Reused)
				assert.Equal(t, l[i].Addr().String(), c[i].RemoteAddr().String())
				assert.Equal(t, l[i].Addr().String(), s[i].LocalAddr().String())
				assert.Equal(t, s[i].RemoteAddr().String(), c[i].LocalAddr().String())
			}
			assert.Equal(t, 1, here.Stats().Peers)
			assert.Equal(t, 1, there.Stats().Peers)

			require.NoError(t, l[closes].Close())
			_, err := d.Dial("rdma", l[closes].Addr().String())
			require.ErrorIs(t, err, syscall.ECONNREFUSED)
			other := l[1-closes]
			c2, s2 := rdmatest.Meet(t, d, other)
			assert.True(t, c2.Info().Reused)
			assert.Equal(t, 1, here.Stats().Peers)
			for i := range l {
				rdmatest.Echo(t, c[i], s[i])
			}
			rdmatest.Echo(t, c2, s2)
			rdmatest.CloseAll(t, c[0], s[0], c[1], s[1], c2, s2)

			third := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
			assert.True(t, rdmatest.Visit(t, d, third, "rdma", third.Addr().String()).Reused)
		})
	}
}

// TestNoReuseSharesNothing: DisableReuse means a control connection for each conn, whatever others do.
func TestNoReuseSharesNothing(t *testing.T) {
	here, there := twoProcesses(t)
	first, second := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there}), rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
	alone, shared := &rdmanet.Dialer{Transport: here, DisableReuse: true}, &rdmanet.Dialer{Transport: here}
	c, s := rdmatest.Meet(t, alone, first)
	c2, s2 := rdmatest.Meet(t, shared, second)
	c3, s3 := rdmatest.Meet(t, alone, first)
	for _, c := range []*rdmanet.Conn{c, c2, c3} {
		assert.False(t, c.Info().Reused)
	}
	assert.Equal(t, 3, here.Stats().Peers)
	rdmatest.CloseAll(t, c, s, c2, s2, c3, s3)
}

// TestSharedIdentity: listeners share a control connection only where TLS has come to the same in both
// handshakes, so that PeerTLS is right for either.
func TestSharedIdentity(t *testing.T) {
	a := newAuthority(t)
	serverCert, clientCert := a.sign("server", time.Hour), a.sign("client", time.Hour)
	server := func(change func(c *tls.Config)) *tls.Config {
		c := &tls.Config{Certificates: []tls.Certificate{serverCert}, ClientCAs: a.pool, ClientAuth: tls.RequireAndVerifyClientCert}
		if change != nil {
			change(c)
		}
		return c
	}
	for name, tt := range map[string]struct {
		first, second *tls.Config
		shared        bool
	}{
		"none":     {nil, nil, true},
		"the same": {server(nil), server(nil), true},
		"another certificate": {server(nil), server(func(c *tls.Config) {
			c.Certificates = []tls.Certificate{a.sign("server", time.Hour)}
		}), false},
		"the client's is not asked for at first": {server(func(c *tls.Config) { c.ClientAuth = tls.NoClientCert }), server(nil), false},
		"the client's is not checked at first":   {server(func(c *tls.Config) { c.ClientAuth = tls.RequireAnyClientCert }), server(nil), false},
		"an older version at first":              {server(func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }), server(nil), false},
	} {
		t.Run(name, func(t *testing.T) {
			here, there := twoProcesses(t)
			d := &rdmanet.Dialer{Transport: here}
			if tt.first != nil {
				d.TLSConfig = &tls.Config{RootCAs: a.pool, Certificates: []tls.Certificate{clientCert}}
			}
			first := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, TLSConfig: tt.first})
			second := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, TLSConfig: tt.second})
			c, s := rdmatest.Meet(t, d, first)
			c2, s2 := rdmatest.Meet(t, d, second)
			assert.Equal(t, tt.shared, c2.Info().Reused)
			assert.Equal(t, tt.shared, there.Stats().Peers == 1)
			if tt.second != nil {
				state, _ := s2.PeerTLS()
				require.NotEmpty(t, state.PeerCertificates)
				assert.Equal(t, clientCert.Leaf.Raw, state.PeerCertificates[0].Raw)
				assert.NotEmpty(t, state.VerifiedChains)
				state, _ = c2.PeerTLS()
				assert.Equal(t, tt.second.Certificates[0].Leaf.Raw, state.PeerCertificates[0].Raw)
			}
			rdmatest.Echo(t, c2, s2)
			rdmatest.CloseAll(t, c, s, c2, s2)
		})
	}
}

// TestSharedSettings: listeners that choose among other providers share no control connection.
func TestSharedSettings(t *testing.T) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.TCP(), Others: []simfabric.Personality{simfabric.EFA()}})
	here, there := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
	rdmatest.Cleanly(t, here, there)
	d := &rdmanet.Dialer{Transport: here}
	for _, provider := range []string{simfabric.TCP().Provider, simfabric.EFA().Provider} {
		for i := range 2 {
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, Providers: []string{provider}})
			info := rdmatest.Visit(t, d, l, "rdma", l.Addr().String())
			assert.Equal(t, provider, info.Provider)
			assert.Equal(t, i > 0, info.Reused)
		}
	}
}

// elsewhere is a fabric whose endpoints are at another address.
type elsewhere struct{ *simfabric.Network }

func (e elsewhere) Open(name string, _ netip.Addr) (fabric.Endpoint, error) {
	return e.Network.Open(name, netip.MustParseAddr("10.1.2.3"))
}

// TestSharedNameRule: a peer whose endpoint is where one listener allows it does not get by that to
// another one, which does not.
func TestSharedNameRule(t *testing.T) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.TCP()})
	here, there := rdmanet.NewTransport(elsewhere{n}), rdmanet.NewTransport(n)
	rdmatest.Cleanly(t, here)
	defer there.Close()
	ten := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	loose := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, EndpointPrefixes: ten})
	strict := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
	d := &rdmanet.Dialer{Transport: here}
	c, s := rdmatest.Meet(t, d, loose)
	_, err := d.Dial("rdma", strict.Addr().String())
	assert.ErrorContains(t, err, "its endpoint is at 10.1.2.3")
	rdmatest.CloseAll(t, c, s)
}

// TestSharedLinkIsAuthorized: a peer reaches only those listeners whose Authorize has let it in.
func TestSharedLinkIsAuthorized(t *testing.T) {
	here, there := twoProcesses(t)
	d := &rdmanet.Dialer{Transport: here}
	var asked atomic.Int32
	var lets atomic.Bool
	open := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
	closed := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, Authorize: func(context.Context, rdmanet.PeerInfo) error {
		asked.Add(1)
		if lets.Load() {
			return nil
		}
		return errors.New("not you")
	}})
	c, s := rdmatest.Meet(t, d, open)
	_, err := d.Dial("rdma", closed.Addr().String())
	require.ErrorIs(t, err, rdmanet.ErrUnauthorized)
	lets.Store(true)
	for range 2 {
		c2, s2 := rdmatest.Meet(t, d, closed)
		assert.True(t, c2.Info().Reused)
		rdmatest.CloseAll(t, c2, s2)
	}
	assert.EqualValues(t, 2, asked.Load())
	rdmatest.CloseAll(t, c, s)
}

// TestSharedLinkCounts: a process counts at each listener that it has met, until it leaves.
func TestSharedLinkCounts(t *testing.T) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.TCP()})
	first, second, there := rdmanet.NewTransport(n), rdmanet.NewTransport(n), rdmanet.NewTransport(n)
	rdmatest.Cleanly(t, first, second, there)
	open := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
	full := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, MaxPeers: 1})
	d, other := &rdmanet.Dialer{Transport: first}, &rdmanet.Dialer{Transport: second}
	c, s := rdmatest.Meet(t, d, open)
	c2, s2 := rdmatest.Meet(t, d, full)
	assert.True(t, c2.Info().Reused)
	c3, s3 := rdmatest.Meet(t, other, open)
	_, err := other.Dial("rdma", full.Addr().String())
	require.ErrorIs(t, err, rdmanet.ErrTooManyPeers)
	rdmatest.CloseAll(t, c, s, c2, s2)
	require.NoError(t, first.Close())
	rdmatest.Eventually(t, func() bool { return there.Stats().Peers == 1 }, "the first has left")
	c4, s4 := rdmatest.Meet(t, other, full)
	assert.True(t, c4.Info().Reused)
	rdmatest.CloseAll(t, c3, s3, c4, s4)
}

// TestDeadLinkIsNotShared: the control connection may end while a dial is about to share it. That dial
// makes another.
func TestDeadLinkIsNotShared(t *testing.T) {
	here, there := twoProcesses(t)
	d := &rdmanet.Dialer{Transport: here}
	first, second := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there}), rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
	for range rdmatest.Rounds(50, 1000) {
		c, s := rdmatest.Meet(t, d, first)
		rdmatest.CloseAll(t, c, s)
		done := make(chan struct{})
		go func() {
			defer close(done)
			rdmanet.LetGo(first)
		}()
		c, s = rdmatest.Meet(t, d, second)
		rdmatest.Echo(t, c, s)
		rdmatest.CloseAll(t, c, s)
		<-done
		here.CloseIdle()
	}
}
