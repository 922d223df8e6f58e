package rdmanet_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestIdlePeersMakeRoom: whoever dials many servers one after the other, as a suite of
// tests does, is not refused for what the peers of before take.
func TestIdlePeersMakeRoom(t *testing.T) {
	const servers = 20
	few := simfabric.TCP()
	few.RxDepth = 64
	for name, tt := range map[string]struct {
		simfabric.Personality
		full string // what is said when there is no room
	}{
		"receive slots":  {few, "receive queue of 64 is shared by"},
		"peers over shm": {simfabric.Shm(), "Transport.MaxShmPeers"},
	} {
		// dial has here dial that many servers, one after the other.
		dial := func(t *testing.T, here *rdmanet.Transport, n *simfabric.Network) (err error) {
			d := &rdmanet.Dialer{Transport: here}
			for i := 0; i < servers && err == nil; i++ {
				there := rdmanet.NewTransport(n)
				t.Cleanup(func() { there.Close() })
				l := listen(t, rdmanet.ListenConfig{Transport: there})
				var c net.Conn
				if c, err = d.Dial("rdma", l.Addr().String()); err == nil {
					s := accept(t, l)
					echo(t, c.(*rdmanet.Conn), s)
					closeAll(t, c, s)
				}
			}
			return err
		}
		t.Run(name, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Seed: 1, Personality: tt.Personality})
			here := rdmanet.NewTransport(n)
			here.MaxShmPeers = 1
			cleanly(t, here)
			require.NoError(t, dial(t, here, n))
			assert.Less(t, here.Stats().Peers, servers)
		})
		t.Run(name+", kept", func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Seed: 1, Personality: tt.Personality})
			here := rdmanet.NewTransport(n)
			here.MaxShmPeers, here.IdlePeerTimeout = 1, -1
			cleanly(t, here)
			for range 2 { // when there is little room, and none at all
				require.ErrorContains(t, dial(t, here, n), tt.full)
			}
		})
	}
}
