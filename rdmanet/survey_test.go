package rdmanet_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/pool"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

var errLocked = errors.New("the limit on locked memory is 64 KiB")

// poor is a machine that has no room for one provider's endpoints, and on which another
// provider cannot register memory.
type poor struct {
	*simfabric.Network
	closed, locked string
}

type unregistrable struct{ fabric.Endpoint }

func (unregistrable) Register([]byte, pool.Access) (pool.Region, error) { return nil, errLocked }

func (p poor) Open(name string, src netip.Addr) (fabric.Endpoint, error) {
	provider, _ := fabric.Split(name)
	if provider == p.closed {
		return nil, errors.New("needs more room in /dev/shm")
	}
	ep, err := p.Network.Open(name, src)
	if err == nil && provider == p.locked {
		ep = unregistrable{ep}
	}
	return ep, err
}

func TestProviders(t *testing.T) {
	lo := netip.MustParseAddr("127.0.0.1")
	first, second, sockets := simfabric.Verbs(), simfabric.Verbs(), simfabric.TCP()
	first.Domain, first.Source = "mlx5_0", netip.MustParseAddr("192.0.2.1")
	second.Domain, second.Source = "mlx5_1", lo
	sockets.Provider = "sockets"
	const elsewhere, unnamed, unlisted = "the domain is named", "only if it is named", "not in the list"
	for name, tt := range map[string]struct {
		poor   poor
		local  netip.Addr
		wanted []string
		used   []string // in order
		not    map[string]string
	}{
		"automatic": {local: lo, used: []string{"shm/sim", "verbs;ofi_rxm/mlx5_1"},
			not: map[string]string{"verbs;ofi_rxm/mlx5_0": elsewhere, "tcp;ofi_rxm/sim": unnamed, "sockets/sim": unnamed, "efa": "not available", "cxi": "not available"}},
		"automatic and one more": {local: lo, wanted: []string{"auto", "tcp;ofi_rxm"}, used: []string{"shm/sim", "verbs;ofi_rxm/mlx5_1", "tcp;ofi_rxm/sim"},
			not: map[string]string{"sockets/sim": unnamed, "efa": "not available"}},
		"any address": {used: []string{"shm/sim", "verbs;ofi_rxm/mlx5_0"}, not: map[string]string{"verbs;ofi_rxm/mlx5_1": elsewhere}},
		"another address": {local: netip.MustParseAddr("192.0.2.9"), used: []string{"shm/sim"},
			not: map[string]string{"verbs;ofi_rxm/mlx5_0": elsewhere, "verbs;ofi_rxm/mlx5_1": elsewhere}},
		"named": {local: lo, wanted: []string{"sockets", "verbs;ofi_rxm/mlx5_0", "verbs;ofi_rxm/mlx5_9", "efa"},
			used: []string{"sockets/sim", "verbs;ofi_rxm/mlx5_0"},
			not: map[string]string{"shm/sim": unlisted, "tcp;ofi_rxm/sim": unlisted, "verbs;ofi_rxm/mlx5_1": "another domain is named",
				"verbs;ofi_rxm/mlx5_9": "provider verbs;ofi_rxm has no domain mlx5_9; there are mlx5_0, mlx5_1", "efa": "not available"}},
		"no room": {local: lo, poor: poor{closed: "shm"}, used: []string{"verbs;ofi_rxm/mlx5_1"},
			not: map[string]string{"shm/sim": "/dev/shm"}},
		"no locked memory": {local: lo, poor: poor{locked: "verbs;ofi_rxm"}, used: []string{"shm/sim"},
			not: map[string]string{"verbs;ofi_rxm/mlx5_1": errLocked.Error()}},
	} {
		t.Run(name, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Personality: sockets, Others: []simfabric.Personality{simfabric.TCP(), first, second, simfabric.Shm()}})
			tt.poor.Network = n
			tr := rdmanet.NewCarefulTransport(tt.poor)
			rdmatest.Cleanly(t, tr)
			list, err := tr.Providers(t.Context(), tt.local, tt.wanted)
			require.NoError(t, err)
			var used []string
			not := make(map[string]string)
			for i, p := range list {
				name := strings.TrimSuffix(p.Provider+"/"+p.Domain, "/")
				if p.Rank == 0 {
					not[name] = p.Reason
					continue
				}
				assert.Equal(t, i+1, p.Rank)
				assert.Empty(t, p.Reason)
				used = append(used, name)
			}
			assert.Equal(t, tt.used, used)
			for name, reason := range tt.not {
				assert.Contains(t, not[name], reason, name)
			}
			assert.Zero(t, n.Stats().Endpoints, "all are closed again")
		})
	}
}

func TestProvidersAttributes(t *testing.T) {
	p := simfabric.Verbs()
	p.Source = netip.MustParseAddr("127.0.0.1")
	p.Protocol, p.ProtocolVersion = 11, 1
	list, err := simulated(t, p).Providers(t.Context(), p.Source, []string{p.Provider})
	require.NoError(t, err)
	assert.Equal(t, []rdmanet.ProviderInfo{{
		Provider: "verbs;ofi_rxm", Domain: "sim", Fabric: "sim", Protocol: 11, ProtocolVersion: 1, Addresses: []netip.Addr{p.Source},
		InjectSize: p.InjectSize, MaxMsgSize: p.MaxMsgSize, CQDataSize: p.CQDataSize, Order: "SAS SAW WAW", MRMode: "LOCAL VIRT_ADDR",
		WaitObject: "fd", LargePath: "RDMA write, then send", Rank: 1,
	}}, list)
}

func TestProvidersErrors(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	_, err := tr.Providers(t.Context(), netip.Addr{}, []string{"tpc"})
	require.ErrorContains(t, err, `unknown provider "tpc"`)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = tr.Providers(ctx, netip.Addr{}, nil)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, tr.Close())
	_, err = tr.Providers(t.Context(), netip.Addr{}, nil)
	require.Error(t, err)
}

func TestRealProviders(t *testing.T) {
	tr := new(rdmanet.Transport)
	rdmatest.Cleanly(t, tr)
	host := netip.MustParseAddr(testenv.Host())
	list, err := tr.Providers(t.Context(), host, testenv.Providers())
	require.NoError(t, err)
	for i, name := range testenv.Providers() {
		p := list[i]
		assert.Equal(t, name, p.Provider)
		assert.Equal(t, i+1, p.Rank)
		assert.NotEmpty(t, p.Domain)
		assert.Positive(t, p.MaxMsgSize)
		assert.Contains(t, p.Order, "SAS")
		if name != "shm" {
			assert.Contains(t, p.Addresses, host)
			assert.Equal(t, "fd", p.WaitObject)
		}
	}
}
