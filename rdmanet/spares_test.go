package rdmanet_test

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// opened waits until the fabric has been asked for n endpoints, and checks that it was not asked for more.
func (f *opener) opened(t *testing.T, n int32) {
	t.Helper()
	require.Eventually(t, func() bool { return f.opens.Load() >= n }, rdmatest.Patience, time.Millisecond)
	assert.Equal(t, n, f.opens.Load())
}

// TestSpares: if each peer has an endpoint of its own, one is ready whenever a listener's peer
// comes, and on the dialing side from the third peer on.
func TestSpares(t *testing.T) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.Shm()})
	hub, client := &opener{Fabric: n}, &opener{Fabric: n}
	here, there := rdmanet.NewTransport(client), rdmanet.NewTransport(hub)
	rdmatest.Cleanly(t, there)
	defer func() { assert.NoError(t, here.Close()) }()
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
	hub.opened(t, 1)
	client.opened(t, 0)
	d := &rdmanet.Dialer{Transport: here, DisableReuse: true}
	for peers := int32(1); peers <= 4; peers++ {
		c, s := rdmatest.Meet(t, d, l)
		hub.opened(t, peers+1) // the next peer's
		if peers == 1 {
			time.Sleep(5 * rdmanet.SpareDelay) // for a spare that must not come, since the first peer may stay the only one
			client.opened(t, peers)
		} else {
			client.opened(t, peers+1)
		}
		rdmatest.Echo(t, c, s)
		rdmatest.CloseAll(t, c, s)
	}
	assert.Empty(t, n.Stats().Misuse)
}

// TestSparesGo: nobody needs a spare, so it is closed when no peer has come for as long as idle
// peers are kept, and by CloseIdle.
func TestSparesGo(t *testing.T) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.Shm()})
	endpoints := func(want int) {
		t.Helper()
		require.Eventually(t, func() bool { return n.Stats().Endpoints == want }, rdmatest.Patience, time.Millisecond)
	}
	short, long := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
	rdmatest.Cleanly(t, short)
	defer func() { assert.NoError(t, long.Close()) }()
	short.IdlePeerTimeout = 100 * time.Millisecond
	rdmatest.Listen(t, rdmanet.ListenConfig{Transport: short})
	endpoints(1)
	endpoints(0)
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: long})
	endpoints(1)
	assert.Zero(t, long.Stats().Providers["shm"].Polling.Endpoints, "it has no peers")
	long.CloseIdle()
	endpoints(0)
	leave := join(t, n, l)
	endpoints(3) // two for the peer, one on each side, and a spare
	leave()
	endpoints(1)
	require.NoError(t, l.Close())
	endpoints(0)
}

// slowSparer is a fabric that takes its time when it is asked whether there is room for a spare.
type slowSparer struct {
	fabric.Fabric
	slow         atomic.Bool
	asked, enter chan struct{}
}

func (s *slowSparer) Spare() bool {
	if s.slow.Load() {
		s.asked <- struct{}{}
		<-s.enter
	}
	return true
}

// TestCloseIdleDuringEarlyOpen: after CloseIdle, nothing is open that was to be opened early.
func TestCloseIdleDuringEarlyOpen(t *testing.T) {
	gone := func(t *testing.T, n *simfabric.Network) {
		t.Helper()
		require.Eventually(t, func() bool { return n.Stats().Endpoints == 0 }, rdmatest.Patience, time.Millisecond)
	}
	t.Run("shared", func(t *testing.T) {
		for range 20 {
			n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.TCP()})
			tr := rdmanet.NewTransport(n)
			rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
			tr.CloseIdle() // however far the endpoint has come
			gone(t, n)
			require.NoError(t, tr.Close())
		}
	})
	t.Run("own", func(t *testing.T) {
		n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.Shm()})
		hub := &opener{Fabric: n}
		f := &slowSparer{Fabric: hub, asked: make(chan struct{}, 10), enter: make(chan struct{})}
		tr := rdmanet.NewTransport(f)
		rdmatest.Cleanly(t, tr)
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
		require.Eventually(t, func() bool { return n.Stats().Endpoints == 1 }, rdmatest.Patience, time.Millisecond)
		f.slow.Store(true)
		leave := join(t, n, l)
		<-f.asked
		leave()
		rdmatest.Eventually(t, func() bool { return tr.Stats().Peers == 0 }, "the peer is gone")
		tr.CloseIdle()
		gone(t, n)
		opens := hub.opens.Load()
		f.slow.Store(false)
		close(f.enter)
		require.NoError(t, tr.Close()) // waits for the goroutine that has asked f
		assert.Equal(t, opens, hub.opens.Load())
	})
}

// TestTransportIsCollected: once a Transport is closed, no timer of a spare keeps it in memory.
func TestTransportIsCollected(t *testing.T) {
	gone := make(chan struct{})
	func() {
		n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.Shm()})
		tr := rdmanet.NewTransport(n)
		runtime.SetFinalizer(tr, func(*rdmanet.Transport) { close(gone) })
		_, err := (&rdmanet.ListenConfig{Transport: tr}).Listen(t.Context(), "rdma", "127.0.0.1:0")
		require.NoError(t, err)
		require.Eventually(t, func() bool { return tr.Stats().Providers["shm"].Endpoints == 1 }, rdmatest.Patience, time.Millisecond)
		require.NoError(t, tr.Close())
	}()
	rdmatest.Eventually(t, func() bool {
		runtime.GC()
		select {
		case <-gone:
			return true
		default:
			return false
		}
	}, "nothing refers to it")
}

// TestSparesMakeRoomForConns: if a conn finds no memory, spares are closed, and the next one finds theirs.
func TestSparesMakeRoomForConns(t *testing.T) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.Shm()})
	here, there := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
	there.MemoryLimit = 20 << 20
	rdmatest.Cleanly(t, here, there)
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, Backlog: 1 << 14})
	d := &rdmanet.Dialer{Transport: here, Timeout: rdmatest.Patience}
	var conns []net.Conn
	for {
		c, err := d.DialContext(t.Context(), "rdma", l.Addr().String())
		if err != nil {
			require.ErrorIs(t, err, rdmanet.ErrMemory)
			break
		}
		conns = append(conns, c, rdmatest.Accept(t, l))
		if len(conns) == 2 {
			rdmatest.Eventually(t, func() bool { return there.Stats().Providers["shm"].Endpoints == 2 }, "a spare")
		}
	}
	rdmatest.Eventually(t, func() bool { return there.Stats().Providers["shm"].Endpoints == 1 }, "no spare")
	c, err := d.DialContext(t.Context(), "rdma", l.Addr().String())
	require.NoError(t, err)
	rdmatest.CloseAll(t, append(conns, c, rdmatest.Accept(t, l))...)
}

// TestNoSpare: a spare takes nobody's place, and not much of the memory when that is short.
func TestNoSpare(t *testing.T) {
	for name, limit := range map[string]func(*rdmanet.Transport){
		"peers":  func(tr *rdmanet.Transport) { tr.MaxShmPeers = 1 },
		"memory": func(tr *rdmanet.Transport) { tr.MemoryLimit = 8 << 20 }, // a spare would take a quarter of it
	} {
		t.Run(name, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.Shm()})
			hub := &opener{Fabric: n}
			there := rdmanet.NewTransport(hub)
			limit(there)
			rdmatest.Cleanly(t, there)
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
			defer join(t, n, l)()
			time.Sleep(5 * rdmanet.SpareDelay) // for a spare that must not come
			hub.opened(t, 1)
		})
	}
}

// TestSparesOfDomains: a spare of one domain does not take the place of another domain's peer, either.
func TestSparesOfDomains(t *testing.T) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.Shm()})
	providers, err := n.Providers(netip.MustParseAddr("127.0.0.1"))
	require.NoError(t, err)
	tr := rdmanet.NewTransport(n)
	tr.MaxShmPeers = 1
	rdmatest.Cleanly(t, tr)
	rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: []string{"shm"}})
	open := func() bool { return tr.Stats().Providers["shm"].Endpoints == 1 }
	rdmatest.Eventually(t, open, "a spare")
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: []string{"shm/" + providers[0].Domain}})
	assert.True(t, open(), "and no other")
	defer join(t, n, l)()
	rdmatest.Eventually(t, open, "the peer's")
}

// TestSpareFailsToOpen: if a spare cannot be opened, the handshake that needs an endpoint opens one itself.
func TestSpareFailsToOpen(t *testing.T) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.Shm()})
	var broken atomic.Bool
	hub := &opener{Fabric: n, before: func(int32) error {
		if broken.CompareAndSwap(true, false) {
			return errors.New("not now")
		}
		return nil
	}}
	broken.Store(true)
	there := rdmanet.NewTransport(hub)
	rdmatest.Cleanly(t, there)
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
	hub.opened(t, 1)
	defer join(t, n, l)()
	hub.opened(t, 2)
}
