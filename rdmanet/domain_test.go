package rdmanet_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/ofifabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// anywhere allows endpoints on devices that have other addresses than the control connection.
var anywhere = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

// TestDomains: each side uses the domain that it names. If it names none, it uses the one that
// has the address of the control connection, and if there is none such, the first.
func TestDomains(t *testing.T) {
	device := func(domain, source string) simfabric.Personality {
		p := simfabric.Verbs()
		p.Domain = domain
		if source != "" {
			p.Source = netip.MustParseAddr(source)
		}
		return p
	}
	for name, tt := range map[string]struct {
		devices          []simfabric.Personality
		dialer, listener []string // providers
		dials, listens   string   // domains
	}{
		"where the address lives": {[]simfabric.Personality{device("mlx5_0", "192.0.2.1"), device("mlx5_1", "127.0.0.1")},
			nil, nil, "mlx5_1", "mlx5_1"},
		"nothing tells": {[]simfabric.Personality{device("mlx5_0", ""), device("mlx5_1", "")},
			nil, nil, "mlx5_0", "mlx5_0"},
		"named by one side": {[]simfabric.Personality{device("mlx5_0", "192.0.2.1"), device("mlx5_1", "127.0.0.1")},
			[]string{"verbs;ofi_rxm/mlx5_0"}, []string{"verbs;ofi_rxm"}, "mlx5_0", "mlx5_1"},
		"named by the other": {[]simfabric.Personality{device("mlx5_0", ""), device("mlx5_1", "")},
			nil, []string{"verbs;ofi_rxm/mlx5_1"}, "mlx5_0", "mlx5_1"},
		"different ones": {[]simfabric.Personality{device("mlx5_0", ""), device("mlx5_1", ""), device("rxe0", "")},
			[]string{"verbs;ofi_rxm/rxe0"}, []string{"verbs;ofi_rxm/mlx5_1"}, "rxe0", "mlx5_1"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := simulated(t, tt.devices[0], tt.devices[1:]...)
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: tt.listener, EndpointPrefixes: anywhere})
			c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr, Providers: tt.dialer, EndpointPrefixes: anywhere}, l)
			assert.Equal(t, tt.dials, c.Info().Domain)
			assert.Equal(t, tt.listens, s.Info().Domain)
			rdmatest.Echo(t, c, s)
			endpoints := 1
			if tt.dials != tt.listens {
				endpoints = 2
			}
			assert.Equal(t, endpoints, tr.Stats().Providers["verbs;ofi_rxm"].Endpoints)
			rdmatest.CloseAll(t, c, s)
		})
	}
	t.Run("in the environment", func(t *testing.T) {
		t.Setenv("RDMANET_PROVIDERS", "verbs;ofi_rxm/mlx5_1,shm")
		tr := simulated(t, device("mlx5_0", ""), device("mlx5_1", ""), simfabric.Shm())
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
		d := &rdmanet.Dialer{Transport: tr}
		c, s := rdmatest.Meet(t, d, l)
		assert.Equal(t, "mlx5_1", c.Info().Domain)
		t.Setenv("RDMANET_PROVIDERS", "verbs;ofi_rxm/mlx5_0")
		other, peer := rdmatest.Meet(t, d, l)
		assert.Equal(t, "mlx5_0", other.Info().Domain, "over another endpoint, and not over a peer that is there")
		rdmatest.CloseAll(t, c, s, other, peer)
	})
}

// TestRealDomains: the domains of the software providers are the network interfaces, each of
// which has its own addresses. A domain works even if the control connection uses another.
func TestRealDomains(t *testing.T) {
	infos, err := ofifabric.New().Providers(netip.Addr{})
	require.NoError(t, err)
	byIP := 0
	for _, info := range infos {
		if !slices.Contains([]string{"tcp;ofi_rxm", testenv.Native}, info.Name) {
			continue
		}
		byIP++
		t.Run(info.Name+" "+info.Domain, func(t *testing.T) {
			tr := new(rdmanet.Transport)
			rdmatest.Cleanly(t, tr)
			providers := []string{info.Name + "/" + info.Domain}
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: providers, EndpointPrefixes: anywhere})
			c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr, Providers: providers, EndpointPrefixes: anywhere}, l)
			for _, conn := range []*rdmanet.Conn{c, s} {
				assert.Equal(t, info.Name, conn.Info().Provider)
				assert.Equal(t, info.Domain, conn.Info().Domain)
			}
			rdmatest.Echo(t, c, s)
			rdmatest.CloseAll(t, c, s)
		})
	}
	assert.Positive(t, byIP)
	tr := new(rdmanet.Transport)
	defer tr.Close()
	_, err = (&rdmanet.ListenConfig{Transport: tr, Providers: []string{"tcp;ofi_rxm/nonesuch"}}).Listen(t.Context(), "rdma", "127.0.0.1:0")
	require.ErrorIs(t, err, rdmanet.ErrProviderUnavailable)
	assert.ErrorContains(t, err, "provider tcp;ofi_rxm has no domain nonesuch; there are ")
	assert.ErrorContains(t, err, "lo")
}
