package rdmanet_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"sync"
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

// silent returns the address of a listener that says nothing.
func silent(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	return ln.Addr().String()
}

// closed returns an address where nothing listens.
func closed(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	return ln.Addr().String()
}

func TestDialErrors(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	for name, tt := range map[string]struct {
		network, address string
		providers        []string
		is               error
		text             string
	}{
		"network":  {"unix", "/x", nil, net.UnknownNetworkError("unix"), "dial unix: unknown network unix"},
		"no port":  {"rdma", "localhost", nil, nil, "dial rdma: address localhost: missing port in address"},
		"port":     {"rdma", "localhost:nonsense", nil, nil, "nonsense"},
		"family":   {"rdma4", "[::1]:1", nil, nil, "no suitable address"},
		"closed":   {"rdma", closed(t), nil, syscall.ECONNREFUSED, "connection refused"},
		"provider": {"rdma", silent(t), []string{"efa"}, rdmanet.ErrProviderUnavailable, "this machine offers tcp;ofi_rxm"},
		"misspelt": {"rdma", silent(t), []string{"tpc"}, nil, `unknown provider "tpc"`},
	} {
		t.Run(name, func(t *testing.T) {
			d := rdmanet.Dialer{Transport: tr, Providers: tt.providers}
			c, err := d.Dial(tt.network, tt.address)
			require.Error(t, err)
			assert.Nil(t, c)
			var oe *net.OpError
			require.ErrorAs(t, err, &oe)
			assert.Equal(t, "dial", oe.Op)
			assert.ErrorContains(t, err, tt.text)
			if tt.is != nil {
				assert.ErrorIs(t, err, tt.is)
			}
		})
	}
}

// TestHandshakeErrorSaysWhere: a dial whose handshake fails says where, like one that finds no
// listener. Its error has both addresses.
func TestHandshakeErrorSaysWhere(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Authorize: func(_ context.Context, _ rdmanet.PeerInfo) error { return errors.New("no") }})
	_, err := (&rdmanet.Dialer{Transport: tr}).Dial("rdma", l.Addr().String())
	var oe *net.OpError
	require.ErrorAs(t, err, &oe)
	require.IsType(t, new(net.TCPAddr), oe.Addr)
	require.IsType(t, new(net.TCPAddr), oe.Source)
	assert.Equal(t, l.Addr().String(), oe.Addr.String())
	assert.NotEqual(t, oe.Addr.String(), oe.Source.String())
}

func TestDialEnds(t *testing.T) {
	soon := func() time.Time { return time.Now().Add(100 * time.Millisecond) } // enough to connect
	for name, tt := range map[string]struct {
		dialer  rdmanet.Dialer
		context func(context.Context) (context.Context, context.CancelFunc)
		is      error
		timeout bool
	}{
		"timeout":  {rdmanet.Dialer{Timeout: 100 * time.Millisecond}, nil, context.DeadlineExceeded, true},
		"deadline": {rdmanet.Dialer{Deadline: soon()}, nil, context.DeadlineExceeded, true},
		"past":     {rdmanet.Dialer{Deadline: time.Unix(1, 0)}, nil, context.DeadlineExceeded, true},
		"context's deadline": {rdmanet.Dialer{Timeout: rdmatest.Patience}, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithDeadline(ctx, soon())
		}, context.DeadlineExceeded, true},
		"cancelled before": {rdmanet.Dialer{}, func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return ctx, cancel
		}, context.Canceled, false},
		"cancel": {rdmanet.Dialer{}, func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(100*time.Millisecond, cancel)
			return ctx, cancel
		}, context.Canceled, false},
	} {
		for _, reuse := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				tr := simulated(t, simfabric.Shm())
				d := tt.dialer
				d.Transport, d.DisableReuse = tr, !reuse
				ctx := t.Context()
				if tt.context != nil {
					var cancel context.CancelFunc
					ctx, cancel = tt.context(ctx)
					defer cancel()
				}
				at := silent(t)
				_, err := d.DialContext(ctx, "rdma", at)
				require.ErrorIs(t, err, tt.is)
				var oe *net.OpError
				require.ErrorAs(t, err, &oe)
				require.NotNil(t, oe.Addr)
				assert.Equal(t, at, oe.Addr.String())
				ne, ok := err.(net.Error)
				require.True(t, ok)
				assert.Equal(t, tt.timeout, ne.Timeout())
				assert.Zero(t, tr.Stats().Peers)
				if name == "timeout" || tt.context != nil && name != "cancelled before" { // the others end before the handshake
					reason := map[bool]string{true: "timeout", false: "canceled"}[tt.timeout]
					rdmatest.Eventually(t, func() bool { return tr.Stats().HandshakeFailures[reason] == 1 }, reason)
				}
			})
		}
	}
}

func TestReuse(t *testing.T) {
	onEach(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: providers})
		d := &rdmanet.Dialer{Transport: tr, Providers: providers}
		var mu sync.Mutex
		var clients []*rdmanet.Conn
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				c, err := d.Dial("rdma", l.Addr().String())
				if assert.NoError(t, err) {
					mu.Lock()
					defer mu.Unlock()
					clients = append(clients, c.(*rdmanet.Conn))
				}
			})
		}
		wg.Wait()
		require.Len(t, clients, 16)
		ids := map[uint64]bool{}
		fresh, ports := 0, map[string]bool{}
		for _, c := range clients {
			ids[c.Info().ID] = true
			ports[c.LocalAddr().String()] = true
			assert.Equal(t, clients[0].Info().ControlLocal, c.Info().ControlLocal)
			assert.Equal(t, l.Addr().String(), c.RemoteAddr().String())
			if !c.Info().Reused {
				fresh++
			}
		}
		assert.Len(t, ids, 16, "conns are told apart")
		assert.Len(t, ports, 16, "by their addresses, too")
		assert.Equal(t, 1, fresh, "one handshake for all")
		assert.Equal(t, 2, tr.Stats().Peers, "one on each side")
		for range clients {
			s := rdmatest.Accept(t, l)
			assert.True(t, ports[s.RemoteAddr().String()])
			go s.Close()
		}
		for _, c := range clients {
			assert.NoError(t, c.Close())
		}
	})
}

func TestKeysOfReuse(t *testing.T) {
	tr := simulated(t, simfabric.TCP(), simfabric.Net())
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	dial := func(d rdmanet.Dialer, address string) rdmanet.ConnInfo {
		d.Transport = tr
		c, err := d.Dial("tcp4", address)
		require.NoError(t, err)
		rdmatest.CloseAll(t, c, rdmatest.Accept(t, l))
		return c.(*rdmanet.Conn).Info()
	}
	first := dial(rdmanet.Dialer{}, "127.0.0.1:"+port)
	assert.False(t, first.Reused)
	assert.Equal(t, "net", first.Provider)
	assert.True(t, dial(rdmanet.Dialer{}, "localhost:"+port).Reused, "a name of the address")
	assert.True(t, dial(rdmanet.Dialer{}, ":"+port).Reused, "this host")
	assert.False(t, dial(rdmanet.Dialer{DisableReuse: true}, "127.0.0.1:"+port).Reused)
	local := rdmanet.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}}
	assert.False(t, dial(local, "127.0.0.1:"+port).Reused)
	assert.True(t, dial(local, "127.0.0.1:"+port).Reused)
	other := dial(rdmanet.Dialer{Providers: []string{"tcp;ofi_rxm"}}, "127.0.0.1:"+port)
	assert.False(t, other.Reused)
	assert.Equal(t, "tcp;ofi_rxm", other.Provider)
}

func TestDisableReuse(t *testing.T) {
	onEach(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: providers})
		d := &rdmanet.Dialer{Transport: tr, Providers: providers, DisableReuse: true}
		for range 3 {
			c, s := rdmatest.Meet(t, d, l)
			rdmatest.Echo(t, c, s)
			assert.Equal(t, 2, tr.Stats().Peers)
			rdmatest.CloseAll(t, s, c)
			rdmatest.Eventually(t, func() bool { return tr.Stats().Peers == 0 }, "the control connection goes with its conn")
		}
	})
}

func TestIdlePeers(t *testing.T) {
	n := simfabric.New(simfabric.Config{Personality: simfabric.Shm()})
	tr := rdmanet.NewTransport(n)
	tr.IdlePeerTimeout = 40 * time.Millisecond
	rdmatest.Cleanly(t, tr)
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
	d := &rdmanet.Dialer{Transport: tr}
	c, s := rdmatest.Meet(t, d, l)
	time.Sleep(3 * tr.IdlePeerTimeout)
	rdmatest.Echo(t, c, s)
	rdmatest.CloseAll(t, c, s)
	rdmatest.Eventually(t, func() bool { return tr.Stats().Peers == 0 }, "idle for long enough")
	rdmatest.Eventually(t, func() bool { return n.Stats().Endpoints == 0 }, "endpoints go with their peers")
	c, s = rdmatest.Meet(t, d, l)
	assert.False(t, c.Info().Reused)
	rdmatest.CloseAll(t, c, s)
	tr.CloseIdle()
	rdmatest.Eventually(t, func() bool { return tr.Stats().Peers == 0 }, "CloseIdle")
}

// TestListenerIsReplaced: a dial finds the listener that has replaced another at its
// address, although the peer is still the same. TestPeerGoesAway has one of another peer.
func TestListenerIsReplaced(t *testing.T) {
	onEach(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		d := &rdmanet.Dialer{Transport: tr, Providers: providers}
		lc := rdmanet.ListenConfig{Transport: tr, Providers: providers}
		first := rdmatest.Listen(t, lc)
		c, s := rdmatest.Meet(t, d, first)
		require.NoError(t, first.Close())
		second, err := lc.Listen(t.Context(), "rdma", first.Addr().String())
		require.NoError(t, err)
		c2, s2 := rdmatest.Meet(t, d, second.(*rdmanet.Listener))
		assert.True(t, c2.Info().Reused, "the process is the same")
		assert.Equal(t, 2, tr.Stats().Peers, "both sides of one control connection")
		c3, s3 := rdmatest.Meet(t, d, second.(*rdmanet.Listener))
		assert.True(t, c3.Info().Reused)
		rdmatest.Echo(t, c, s)
		rdmatest.Echo(t, c2, s2)
		rdmatest.CloseAll(t, c, s, c2, s2, c3, s3)
		require.NoError(t, second.Close())
	})
}

// TestResetAfterAccept: Dial succeeds even if the server resets the conn as soon as it has accepted
// it, as over TCP. The next call on the conn reports the reset. The peer is as good as before.
func TestResetAfterAccept(t *testing.T) {
	onEach(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: providers})
		d := &rdmanet.Dialer{Transport: tr, Providers: providers}
		first, served := rdmatest.Meet(t, d, l)
		var hands sync.WaitGroup
		hands.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				assert.NoError(t, c.(*rdmanet.Conn).SetLinger(0))
				assert.NoError(t, c.Close())
			}
		})
		for range 20 {
			c, err := d.Dial("rdma", l.Addr().String())
			require.NoError(t, err)
			assert.True(t, c.(*rdmanet.Conn).Info().Reused)
			_, err = c.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ECONNRESET)
			require.NoError(t, c.Close())
		}
		rdmatest.Echo(t, first, served)
		rdmatest.CloseAll(t, first, served)
		require.NoError(t, l.Close())
		hands.Wait()
	})
}

func TestPeerGoesAway(t *testing.T) {
	for _, p := range []simfabric.Personality{simfabric.Shm(), simfabric.TCP()} {
		t.Run(p.Provider, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Personality: p})
			here, there := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
			rdmatest.Cleanly(t, here)
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
			d := &rdmanet.Dialer{Transport: here}
			c, s := rdmatest.Meet(t, d, l)
			rdmatest.Echo(t, c, s)
			require.NoError(t, there.Close())
			_, err := c.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ECONNRESET)
			_, err = c.Write([]byte("x"))
			require.Error(t, err)
			_, err = s.Read(make([]byte, 1))
			require.Error(t, err, "at the side that closed")
			_, err = d.Dial("rdma", l.Addr().String())
			require.ErrorIs(t, err, syscall.ECONNREFUSED)

			again := rdmanet.NewTransport(n)
			defer again.Close()
			l2, err := (&rdmanet.ListenConfig{Transport: again}).Listen(t.Context(), "rdma", l.Addr().String())
			require.NoError(t, err)
			c2, s2 := rdmatest.Meet(t, d, l2.(*rdmanet.Listener))
			rdmatest.Echo(t, c2, s2)
			rdmatest.CloseAll(t, c2, s2)
			rdmatest.CloseAll(t, c, s)
		})
	}
}

// TestShmPeersAreLimited: the limit holds whichever side reaches it. The listener is the first to prepare
// a provider.
func TestShmPeersAreLimited(t *testing.T) {
	for limit, shm := range []int{1: 0, 2: 1, 3: 1, 4: 2} { // conns that get shared memory, by limit; both ends are here
		if limit == 0 {
			continue
		}
		t.Run(strconv.Itoa(limit), func(t *testing.T) {
			tr := simulated(t, simfabric.Shm(), simfabric.TCP())
			tr.MaxShmPeers = limit
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
			d := &rdmanet.Dialer{Transport: tr, DisableReuse: true}
			var conns []net.Conn
			for i := range shm + 2 {
				c, s := rdmatest.Meet(t, d, l)
				want := "shm"
				if i >= shm {
					want = "tcp;ofi_rxm"
				}
				assert.Equal(t, want, c.Info().Provider)
				rdmatest.Echo(t, c, s)
				conns = append(conns, c, s)
			}
			_, err := (&rdmanet.Dialer{Transport: tr, Providers: []string{"shm"}}).Dial("rdma", l.Addr().String())
			require.ErrorIs(t, err, rdmanet.ErrNoProvider)
			assert.ErrorContains(t, err, "MaxShmPeers")
			rdmatest.CloseAll(t, conns...)
		})
	}
}

// broken is a fabric on which one of the providers loses the first frame of each
// endpoint.
type broken struct {
	*simfabric.Network
	provider string
}

func (b broken) Open(provider string, src netip.Addr) (fabric.Endpoint, error) {
	ep, err := b.Network.Open(provider, src)
	if err == nil && provider == b.provider {
		for _, k := range []fabric.Kind{fabric.Inject, fabric.Send} {
			b.Fail(ep, k, simfabric.ErrInjected)
		}
	}
	return ep, err
}

// TestBrokenProvider: a provider that is there but does not work is passed over.
func TestBrokenProvider(t *testing.T) {
	for _, p := range []simfabric.Personality{simfabric.Shm(), simfabric.Verbs()} {
		t.Run(p.Provider, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Personality: p, Others: []simfabric.Personality{simfabric.TCP()}})
			tr := rdmanet.NewTransport(broken{n, p.Provider})
			rdmatest.Cleanly(t, tr)
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
			c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr, Timeout: time.Second}, l)
			assert.Equal(t, "tcp;ofi_rxm", c.Info().Provider)
			rdmatest.Echo(t, c, s)
			rdmatest.CloseAll(t, c, s)
			rdmatest.Eventually(t, func() bool { return tr.Stats().Peers == 2 }, "nothing is left of the first attempt")
		})
	}
}

// TestGoodbye: a peer that ends in good order is told so. A goodbye is the only message that the
// dialing side sends over the control connection.
func TestGoodbye(t *testing.T) {
	const rounds = 30
	n := simfabric.New(simfabric.Config{Personality: simfabric.TCP()})
	here, there := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
	rdmatest.Cleanly(t, here)
	defer there.Close()
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
	for range rounds {
		c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: here, DisableReuse: true}, l)
		rdmatest.CloseAll(t, c, s)
	}
	rdmatest.Eventually(t, func() bool { return here.Stats().Peers == 0 && there.Stats().Peers == 0 }, "all are gone")
	assert.EqualValues(t, rounds, here.Stats().ControlSent)
	assert.EqualValues(t, rounds, there.Stats().ControlReceived)
}
