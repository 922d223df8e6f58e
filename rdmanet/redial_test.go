package rdmanet_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// A dial that gives up leaves the peer alone, so that others can use it.
func TestDialGivenUpKeepsThePeer(t *testing.T) {
	for _, p := range []simfabric.Personality{simfabric.Shm(), simfabric.TCP()} {
		t.Run(p.Provider, func(t *testing.T) {
			f := newRigged(p)
			tr := rdmanet.NewTransport(f)
			rdmatest.Cleanly(t, tr)
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
			d := &rdmanet.Dialer{Transport: tr}
			c, s := rdmatest.Meet(t, d, l)

			f.frozen.Store(true)
			_, err := (&rdmanet.Dialer{Transport: tr, Timeout: 30 * time.Millisecond}).Dial("rdma", l.Addr().String())
			require.ErrorIs(t, err, context.DeadlineExceeded)
			f.frozen.Store(false)

			rdmatest.Echo(t, c, s)
			c2, err := d.Dial("rdma", l.Addr().String())
			require.NoError(t, err)
			assert.True(t, c2.(*rdmanet.Conn).Info().Reused)
			assert.Equal(t, 2, tr.Stats().Peers)
			rdmatest.CloseAll(t, c, s)
			require.NoError(t, c2.(*rdmanet.Conn).SetLinger(0))
			require.NoError(t, c2.Close())
		})
	}
}

// A listener that refuses is asked once more, over a new connection, since another listener
// may have its address by now. If it is still the same, nothing changes.
func TestRefusalsKeepThePeer(t *testing.T) {
	onEach(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: providers, Backlog: 1})
		d := &rdmanet.Dialer{Transport: tr, Providers: providers}
		c, s := rdmatest.Meet(t, d, l)
		c2, err := d.Dial("rdma", l.Addr().String())
		require.NoError(t, err, "into the backlog")
		var wg sync.WaitGroup
		for range 3 {
			for range 2 {
				wg.Go(func() {
					_, err := d.Dial("rdma", l.Addr().String())
					assert.ErrorIs(t, err, syscall.ECONNREFUSED)
				})
			}
			wg.Wait()
			rdmatest.Eventually(t, func() bool { return tr.Stats().Peers == 2 }, "no peers but those of the first dial")
		}
		s2 := rdmatest.Accept(t, l)
		c3, s3 := rdmatest.Meet(t, d, l)
		assert.True(t, c3.Info().Reused)
		rdmatest.Echo(t, c, s)
		rdmatest.Echo(t, c2, s2)
		rdmatest.CloseAll(t, c, s, c2, s2, c3, s3)
	})
}

func TestDialWithEndedContext(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
	d := &rdmanet.Dialer{Transport: tr}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, met := range []bool{false, true} {
		if met {
			c, s := rdmatest.Meet(t, d, l)
			rdmatest.CloseAll(t, c, s)
		}
		before := tr.Stats()
		_, err := d.DialContext(ctx, "rdma", l.Addr().String())
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, l.SetDeadline(time.Now().Add(20*time.Millisecond)))
		_, err = l.Accept()
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		after := tr.Stats()
		assert.Equal(t, before.Peers, after.Peers)
		assert.Equal(t, before.HandshakeFailures, after.HandshakeFailures)
	}
	_, err := d.DialContext(ctx, "rdma", "host.invalid:1")
	assert.ErrorIs(t, err, context.Canceled, "before the name is looked up")
	c, s := rdmatest.Meet(t, d, l)
	assert.True(t, c.Info().Reused)
	rdmatest.CloseAll(t, c, s)
}

// Concurrent dials of one address keep to their own settings.
func TestConcurrentDialsOfDifferentPatience(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	address := silent(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		d := rdmanet.Dialer{Transport: tr, Timeout: rdmatest.Patience, Fallback: rdmanet.FallbackTCP} // the handshake gets three seconds of that
		c, err := d.Dial("rdma", address)
		if assert.NoError(t, err) {
			c.Close()
		}
	})
	rdmatest.Eventually(t, func() bool { return tr.Flights() > 0 }, "the first has begun")
	begin := time.Now()
	_, err := (&rdmanet.Dialer{Transport: tr, Timeout: 4 * time.Second}).Dial("rdma", address)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.GreaterOrEqual(t, time.Since(begin), 4*time.Second)
	wg.Wait()
}

// However often idle peers are closed, a dial gets one that is alive.
func TestDialsDuringCloseIdle(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					tr.CloseIdle()
				}
			}
		})
	}
	for range 200 {
		c, err := (&rdmanet.Dialer{Transport: tr}).Dial("rdma", l.Addr().String())
		if !assert.NoError(t, err) {
			break
		}
		rdmatest.CloseAll(t, c, rdmatest.Accept(t, l))
	}
	close(stop)
	wg.Wait()
}

// limited returns the two sides of a test. The named one has limit as its MemoryLimit.
func limited(t *testing.T, n *simfabric.Network, side string, limit int64) (here, there *rdmanet.Transport) {
	here, there = rdmanet.NewTransport(n), rdmanet.NewTransport(n)
	rdmatest.Cleanly(t, here)
	t.Cleanup(func() { assert.NoError(t, there.Close()) })
	if side == "listener" {
		there.MemoryLimit = limit
	} else {
		here.MemoryLimit = limit
	}
	return here, there
}

// dialAll dials until there is no memory for another conn.
func dialAll(t *testing.T, d *rdmanet.Dialer, l net.Listener) (conns []net.Conn) {
	t.Helper()
	for {
		c, err := d.Dial("rdma", l.Addr().String())
		if err != nil {
			require.ErrorIs(t, err, rdmanet.ErrMemory)
			return conns
		}
		conns = append(conns, c)
	}
}

// If either side has no memory for another peer, that is no reason to fall back to TCP.
func TestDialWithoutMemory(t *testing.T) {
	for _, side := range []string{"listener", "dialer"} {
		t.Run(side, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Personality: simfabric.Shm(), Others: []simfabric.Personality{simfabric.TCP()}})
			here, there := limited(t, n, side, 64<<10)
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, AcceptTCP: true})
			d := rdmanet.Dialer{Transport: here, Fallback: rdmanet.FallbackTCP}
			_, err := d.Dial("rdma", l.Addr().String())
			require.ErrorIs(t, err, rdmanet.ErrMemory)
			assert.EqualValues(t, 1, here.Stats().HandshakeFailures["memory"])
		})
	}
}

// A Dial that finds no memory for another conn leaves the peer alone. The peer has other conns,
// and room again once some of them are closed.
func TestDialOutOfMemory(t *testing.T) {
	for _, side := range []string{"listener", "dialer"} {
		t.Run(side, func(t *testing.T) {
			here, there := limited(t, simfabric.New(simfabric.Config{Personality: simfabric.Shm()}), side, 2<<20)
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, Backlog: 10000})
			d := &rdmanet.Dialer{Transport: here}
			var conns []net.Conn
			for _, c := range dialAll(t, d, l) {
				conns = append(conns, c, rdmatest.Accept(t, l))
			}
			require.Greater(t, len(conns), 10)
			assert.Empty(t, here.Stats().HandshakeFailures)
			rdmatest.CloseAll(t, conns[2:]...)
			for range 5 {
				c, err := d.Dial("rdma", l.Addr().String())
				require.NoError(t, err)
				rdmatest.CloseAll(t, c, rdmatest.Accept(t, l))
			}
			rdmatest.CloseAll(t, conns[:2]...)
		})
	}
}

// A dialer in the middle of a handshake learns that the listener is closing.
func TestDialWhileListenerCloses(t *testing.T) {
	for name, transport := range map[string]bool{"Listener.Close": false, "Transport.Close": true} {
		t.Run(name, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Personality: simfabric.TCP()})
			here, there := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
			rdmatest.Cleanly(t, here)
			defer there.Close()
			var l *rdmanet.Listener
			var closing sync.WaitGroup
			l = rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, Authorize: func(_ context.Context, _ rdmanet.PeerInfo) error {
				closing.Go(func() {
					if transport {
						assert.NoError(t, there.Close())
					} else {
						assert.NoError(t, l.Close())
					}
				})
				for { // until the listener is closed
					nc, err := net.Dial("tcp", l.Addr().String())
					if err != nil {
						return nil
					}
					nc.Close()
				}
			}})
			_, err := (&rdmanet.Dialer{Transport: here}).Dial("rdma", l.Addr().String())
			require.ErrorIs(t, err, rdmanet.ErrClosing)
			closing.Wait()
		})
	}
}

// A peer that fell silent can be dialed again, although the provider has kept a broken
// connection between the two endpoints.
func TestRedialAfterLoss(t *testing.T) {
	f, here, there := grudging(t)
	defer closeBoth(t, here, there)
	here.DeadAfter, there.DeadAfter = 200*time.Millisecond, 200*time.Millisecond
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
	d := &rdmanet.Dialer{Transport: here}
	c, s := rdmatest.Meet(t, d, l)
	rdmatest.Echo(t, c, s)
	f.frozen.Store(true)
	_, err := c.Write([]byte("lost"))
	require.NoError(t, err)
	untilReset(t, c)
	f.frozen.Store(false)
	c2, s2 := rdmatest.Meet(t, d, l)
	replaced(t, here, c, s, c2, s2)
}

// The same holds if the listening side noticed first, because the dialing process had been
// stopped for a while: that process must learn that it was given up.
func TestRedialAfterSilence(t *testing.T) {
	_, here, there := grudging(t)
	defer closeBoth(t, here, there) // before muffled waits for the connections' end
	there.DeadAfter = 200 * time.Millisecond
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
	var mute atomic.Bool
	addr := muffled(t, l.Addr().String(), &mute)
	dial := func() (c, s *rdmanet.Conn) {
		nc, err := (&rdmanet.Dialer{Transport: here}).Dial("rdma", addr)
		require.NoError(t, err)
		return nc.(*rdmanet.Conn), rdmatest.Accept(t, l)
	}
	c, s := dial()
	rdmatest.Echo(t, c, s)
	rdmatest.Eventually(t, func() bool { return there.Stats().ControlReceived > 0 }, "a heartbeat: the handshake is over")
	mute.Store(true)
	untilReset(t, c)
	mute.Store(false)
	c2, s2 := dial()
	replaced(t, here, c, s, c2, s2)
}

// grudging makes two Transports over a fabric that keeps a broken connection to each
// address that was removed.
func grudging(t *testing.T) (f *rigged, here, there *rdmanet.Transport) {
	t.Helper()
	f = newRigged(simfabric.TCP())
	void, err := f.Network.Open(simfabric.TCP().Provider, netip.Addr{})
	require.NoError(t, err)
	t.Cleanup(func() { void.Close() })
	f.void = void.Name()
	here, there = rdmanet.NewTransport(f), rdmanet.NewTransport(f)
	return f, here, there
}

func closeBoth(t *testing.T, here, there *rdmanet.Transport) {
	t.Helper()
	assert.NoError(t, here.Close())
	assert.NoError(t, there.Close())
}

func untilReset(t *testing.T, c *rdmanet.Conn) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(rdmatest.Patience)))
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

// replaced checks that c2 and s2 work, and that the dialing Transport keeps nothing of the
// peer before them, to which c and s belonged.
func replaced(t *testing.T, here *rdmanet.Transport, c, s, c2, s2 *rdmanet.Conn) {
	t.Helper()
	rdmatest.Echo(t, c2, s2)
	assert.NoError(t, c.Close())
	_ = s.Close() // it may have been lost, too
	rdmatest.Eventually(t, func() bool { return here.Stats().Providers["tcp;ofi_rxm"].Endpoints == 1 }, "the old endpoint goes")
	rdmatest.CloseAll(t, c2, s2)
}

// muffled listens at the address that it returns, and passes TCP connections on to addr.
// While mute is set, it drops what their clients say.
func muffled(t *testing.T, addr string, mute *atomic.Bool) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var passing sync.WaitGroup
	t.Cleanup(func() {
		assert.NoError(t, l.Close())
		passing.Wait()
	})
	pass := func(to io.WriteCloser, from io.Reader) {
		defer to.Close()
		_, _ = io.Copy(to, from)
	}
	passing.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", addr)
			if !assert.NoError(t, err) {
				in.Close()
				return
			}
			passing.Go(func() { pass(muteConn{out, mute}, in) })
			passing.Go(func() { pass(in, out) })
		}
	})
	return l.Addr().String()
}

// muteConn drops what is written while mute is set.
type muteConn struct {
	net.Conn
	mute *atomic.Bool
}

func (c muteConn) Write(b []byte) (int, error) {
	if c.mute.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// TestCountersNeverFall: what has been counted stays counted while endpoints come and go.
func TestCountersNeverFall(t *testing.T) {
	for _, p := range []simfabric.Personality{simfabric.Shm(), simfabric.TCP()} {
		t.Run(p.Provider, func(t *testing.T) {
			tr := simulated(t, p)
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
			d := &rdmanet.Dialer{Transport: tr, DisableReuse: true}
			done := make(chan struct{})
			var watching sync.WaitGroup
			watching.Go(func() {
				for last := (rdmanet.TransportStats{}); ; {
					now := tr.Stats()
					if !notLess(t, reflect.ValueOf(last), reflect.ValueOf(now), "TransportStats") {
						return
					}
					last = now
					select {
					case <-done:
						return
					default:
					}
				}
			})
			for range 50 {
				c, s := rdmatest.Meet(t, d, l)
				rdmatest.Echo(t, c, s)
				rdmatest.CloseAll(t, c, s)
				tr.CloseIdle()
			}
			close(done)
			watching.Wait()
		})
	}
}
