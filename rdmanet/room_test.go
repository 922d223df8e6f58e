package rdmanet_test

import (
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestIdlePeersMakeRoom: a process that dials many servers one after the other, as a suite
// of tests does, is not refused because of what earlier peers take.
func TestIdlePeersMakeRoom(t *testing.T) {
	const servers = 70
	few := simfabric.TCP()
	few.RxDepth = framing.MinSlots // for one peer
	for name, tt := range map[string]struct {
		simfabric.Personality
		full string // part of the error when there is no room
	}{
		"receive slots":  {few, "all 64 endpoints are full, or stale"},
		"peers over shm": {simfabric.Shm(), "Transport.MaxShmPeers"},
	} {
		// dial makes here dial the servers, one after the other.
		dial := func(t *testing.T, here *rdmanet.Transport, n *simfabric.Network) (err error) {
			d := &rdmanet.Dialer{Transport: here}
			for i := 0; i < servers && err == nil; i++ {
				there := rdmanet.NewTransport(n)
				t.Cleanup(func() { there.Close() })
				l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
				var c net.Conn
				if c, err = d.Dial("rdma", l.Addr().String()); err == nil {
					s := rdmatest.Accept(t, l)
					rdmatest.Echo(t, c.(*rdmanet.Conn), s)
					rdmatest.CloseAll(t, c, s)
				}
			}
			return err
		}
		t.Run(name, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Seed: 1, Personality: tt.Personality})
			here := rdmanet.NewTransport(n)
			here.MaxShmPeers = 1
			rdmatest.Cleanly(t, here)
			require.NoError(t, dial(t, here, n))
			assert.Less(t, here.Stats().Peers, servers)
		})
		t.Run(name+", kept", func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Seed: 1, Personality: tt.Personality})
			here := rdmanet.NewTransport(n)
			here.MaxShmPeers, here.IdlePeerTimeout = 1, -1
			rdmatest.Cleanly(t, here)
			for range 2 { // first with little room, and then with none at all
				before := here.Stats().PeersRefused
				require.ErrorContains(t, dial(t, here, n), tt.full)
				assert.Equal(t, before+1, here.Stats().PeersRefused)
			}
		})
	}
}

// TestFurtherEndpoints: when endpoints are full, others are opened beside them, on both sides.
// Endpoints that have no peers left are closed, and places that become free are used.
func TestFurtherEndpoints(t *testing.T) {
	const places, all = 2, 3
	few := simfabric.TCP()
	few.RxDepth = places * framing.MinSlots
	for _, side := range []string{"listening", "dialing"} {
		t.Run(side, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Seed: 1, Personality: few})
			hub := rdmanet.NewTransport(n)
			rdmatest.Cleanly(t, hub)
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: hub})
			type spoke struct {
				*rdmanet.Transport
				a, b *rdmanet.Conn
			}
			join := func() (s spoke) {
				s.Transport = rdmanet.NewTransport(n)
				t.Cleanup(func() { s.Close() })
				if side == "listening" {
					s.a, s.b = rdmatest.Meet(t, &rdmanet.Dialer{Transport: s.Transport}, l)
				} else {
					s.a, s.b = rdmatest.Meet(t, &rdmanet.Dialer{Transport: hub}, rdmatest.Listen(t, rdmanet.ListenConfig{Transport: s.Transport}))
				}
				rdmatest.Echo(t, s.a, s.b)
				return s
			}
			leave := func(s spoke) {
				peers := hub.Stats().Peers
				rdmatest.CloseAll(t, s.a, s.b)
				require.NoError(t, s.Close())
				rdmatest.Eventually(t, func() bool { return hub.Stats().Peers < peers }, "it is gone")
			}
			endpoints := func() int { return hub.Stats().Providers[few.Provider].Endpoints }
			var spokes []spoke
			for i := range places * all {
				spokes = append(spokes, join())
				require.Equal(t, 1+i/places, endpoints())
			}
			leave(spokes[0])
			spokes[0] = join()
			require.Equal(t, all, endpoints(), "the place in the first is used")
			for _, s := range spokes[places:] {
				leave(s)
			}
			rdmatest.Eventually(t, func() bool { return endpoints() == 2 }, "one that takes peers is kept")
			for _, s := range spokes[:places] {
				rdmatest.Echo(t, s.a, s.b)
				leave(s)
			}
			rdmatest.Eventually(t, func() bool { return endpoints() == 1 }, "one is kept")
			assert.Zero(t, hub.Stats().PeersRefused)
		})
	}
}

// TestLastPlace: if two handshakes race for the last place of an endpoint, one gets it, and
// the other is offered the next endpoint.
func TestLastPlace(t *testing.T) {
	few := simfabric.TCP()
	few.RxDepth = 3 * framing.MinSlots
	for range rdmatest.Rounds(20, 500) {
		n := simfabric.New(simfabric.Config{Seed: 1, Personality: few})
		hub := rdmanet.NewTransport(n)
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: hub})
		var racers sync.WaitGroup
		join := func() {
			there := rdmanet.NewTransport(n)
			t.Cleanup(func() { there.Close() })
			racers.Go(func() {
				c, err := (&rdmanet.Dialer{Transport: there}).Dial("rdma", l.Addr().String())
				if assert.NoError(t, err) {
					t.Cleanup(func() { c.Close() })
				}
			})
		}
		for range 2 {
			join()
			racers.Wait()
		}
		for range 2 {
			join()
		}
		racers.Wait()
		require.Equal(t, 2, hub.Stats().Providers[few.Provider].Endpoints)
		require.Equal(t, 4, hub.Stats().Peers)
		require.Zero(t, hub.Stats().PeersRefused)
		require.Empty(t, hub.Stats().HandshakeFailures)
		require.NoError(t, hub.Close())
	}
}

// TestAvoidedEndpoints: endpoints of which a peer has fallen silent are used again when no
// others may be opened, and are closed when they have no peers left.
func TestAvoidedEndpoints(t *testing.T) {
	const most = 64
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.TCP()})
	hub := rdmanet.NewTransport(n)
	rdmatest.Cleanly(t, hub)
	endpoints := func() int { return hub.Stats().Providers[simfabric.TCP().Provider].Endpoints }
	var conns []*rdmanet.Conn
	for i := range most + 4 {
		there := rdmanet.NewTransport(n)
		t.Cleanup(func() { there.Close() })
		a, b := rdmatest.Meet(t, &rdmanet.Dialer{Transport: hub}, rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there}))
		rdmatest.Echo(t, a, b)
		rdmanet.Avoid(a)
		conns = append(conns, a, b)
		require.Equal(t, min(i+1, most), endpoints())
	}
	for i := 0; i < len(conns); i += 2 {
		rdmatest.CloseAll(t, conns[i], conns[i+1])
	}
	hub.CloseIdle()
	rdmatest.Eventually(t, func() bool { return endpoints() == 0 }, "none is kept")
	assert.Zero(t, hub.Stats().PeersRefused)
}

// TestGivenUpPeerLeaves: a peer that was given up gives its quota back once it has noticed, while the endpoint goes on.
func TestGivenUpPeerLeaves(t *testing.T) {
	few := simfabric.Net()
	few.RxDepth = 2 * framing.MinSlots
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: few})
	hub := rdmanet.NewTransport(n)
	rdmatest.Cleanly(t, hub)
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: hub})
	var conns [2][2]*rdmanet.Conn
	for i := range conns {
		there := rdmanet.NewTransport(n)
		t.Cleanup(func() { there.Close() })
		conns[i][0], conns[i][1] = rdmatest.Meet(t, &rdmanet.Dialer{Transport: there}, l)
	}
	require.False(t, rdmanet.Takes(conns[0][1]))
	rdmanet.GiveUp(conns[1][1])
	rdmatest.Eventually(t, func() bool { return rdmanet.Takes(conns[0][1]) }, "it has left")
	rdmatest.Echo(t, conns[0][0], conns[0][1])
	join(t, n, l)()
	assert.Equal(t, 1, hub.Stats().Providers[few.Provider].Endpoints)
	rdmatest.CloseAll(t, conns[0][0], conns[0][1], conns[1][0], conns[1][1])
}
