package rdmanet_test

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// older is a fabric whose library has another version.
type older struct{ fabric.Fabric }

func (o older) Providers(src netip.Addr) ([]fabric.ProviderInfo, error) {
	infos, err := o.Fabric.Providers(src)
	for i := range infos {
		infos[i].Library = "1.1"
	}
	return infos, err
}

// Both ends know why a better provider is not used, and their logs show it.
func TestRefused(t *testing.T) {
	all := func(n *simfabric.Network) fabric.Fabric { return n }
	only := func(names ...string) func(*simfabric.Network) fabric.Fabric {
		return func(n *simfabric.Network) fabric.Fabric { return n.Only(names...) }
	}
	for name, tt := range map[string]struct {
		dialer, listener func(*simfabric.Network) fabric.Fabric
		taken            int // peers that the listener already has over shared memory
		timeout          time.Duration
		provider         string
		refused          string // "" for nothing
	}{
		"nothing": {dialer: all, listener: all, provider: "shm"},
		"library": {dialer: func(n *simfabric.Network) fabric.Fabric { return older{n} }, listener: all,
			provider: "tcp;ofi_rxm", refused: `shm: library versions differ: "" and "1.1"`},
		"only the listener": {dialer: only("tcp;ofi_rxm"), listener: all, provider: "tcp;ofi_rxm", refused: "shm: only one side offers it"},
		"only the dialer":   {dialer: all, listener: only("tcp;ofi_rxm"), provider: "tcp;ofi_rxm", refused: "shm: the listener does not offer it"},
		"MaxShmPeers": {dialer: all, listener: all, taken: 1,
			provider: "tcp;ofi_rxm", refused: "shm: too many peers over shared memory: 1, none of which is idle (Transport.MaxShmPeers)"},
		"broken": {dialer: all, listener: func(n *simfabric.Network) fabric.Fabric { return broken{n, "shm"} },
			timeout: time.Second, provider: "tcp;ofi_rxm", refused: "shm: "},
	} {
		t.Run(name, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Personality: simfabric.Shm(), Others: []simfabric.Personality{simfabric.TCP()}})
			here, there := rdmanet.NewTransport(tt.dialer(n)), rdmanet.NewTransport(tt.listener(n))
			rdmatest.Cleanly(t, here)
			defer there.Close()
			var logs [2]lockedBuffer
			logger := func(i int) *slog.Logger {
				return slog.New(slog.NewTextHandler(&logs[i], &slog.HandlerOptions{Level: slog.LevelDebug}))
			}
			there.MaxShmPeers = 1
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, Logger: logger(0)})
			for range tt.taken {
				c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: here, DisableReuse: true}, l)
				defer rdmatest.CloseAll(t, c, s)
			}
			d := &rdmanet.Dialer{Transport: here, Timeout: tt.timeout, Logger: logger(1)}
			c, s := rdmatest.Meet(t, d, l)
			again, other := rdmatest.Meet(t, d, l)
			require.True(t, again.Info().Reused)
			for _, conn := range []*rdmanet.Conn{c, s, again, other} {
				info := conn.Info()
				assert.Equal(t, tt.provider, info.Provider)
				if tt.refused == "" {
					assert.Empty(t, info.Refused)
					continue
				}
				require.Len(t, info.Refused, 1)
				assert.True(t, strings.HasPrefix(info.Refused[0].String(), tt.refused), info.Refused[0])
			}
			rdmatest.CloseAll(t, c, s, again, other)
			level := "level=DEBUG"
			if tt.refused != "" {
				level = "level=INFO"
			}
			for i, want := range []int{1 + tt.taken, 1} { // handshakes
				assert.EventuallyWithT(t, func(t *assert.CollectT) {
					assert.Equal(t, want, strings.Count(logs[i].String(), "connected with a peer"), logs[i].String())
				}, rdmatest.Patience, time.Millisecond)
				assert.Contains(t, logs[i].String(), level)
				assert.Contains(t, logs[i].String(), "provider="+tt.provider)
			}
		})
	}
}
