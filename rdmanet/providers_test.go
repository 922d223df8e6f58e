package rdmanet

import (
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

func offered(names ...string) (list []fabric.ProviderInfo) {
	for _, n := range names {
		list = append(list, fabric.ProviderInfo{Name: n})
	}
	return list
}

// opened lists the providers and domains of offers.
func opened(list []offer) string {
	var all []string
	for _, o := range list {
		all = append(all, fabric.Join(o.Name, o.Domain))
	}
	return strings.Join(all, ", ")
}

func TestChoose(t *testing.T) {
	all := offered("udp;ofi_rxd", "tcp;ofi_rxm", "sockets", "net", "verbs;ofi_rxm", "shm")
	devices := []fabric.ProviderInfo{
		{Name: "verbs;ofi_rxm", Domain: "mlx5_0", Elsewhere: true}, {Name: "verbs;ofi_rxm", Domain: "mlx5_1"},
		{Name: "net", Domain: "eth0", Elsewhere: true},
	}
	for name, tt := range map[string]struct {
		infos   []fabric.ProviderInfo
		wanted  []string
		want    string
		missing []string
	}{
		"automatic":           {all, nil, "shm, verbs;ofi_rxm", nil},
		"automatic, and more": {all, []string{"net", "auto", "tcp;ofi_rxm", "efa"}, "net, shm, verbs;ofi_rxm, tcp;ofi_rxm", []string{"efa"}},
		"hardware not tried":  {offered("opx", "psm3"), nil, "", nil},
		"nothing":             {nil, nil, "", nil},
		"only software":       {offered("tcp", "net", "tcp;ofi_rxm", "udp;ofi_rxd", "sockets"), nil, "", nil},
		"the user's order":    {all, []string{"tcp;ofi_rxm", "shm"}, "tcp;ofi_rxm, shm", nil},
		"on request":          {all, []string{"sockets"}, "sockets", nil},
		"one is not here":     {all, []string{"efa", "net"}, "net", []string{"efa"}},
		"twice":               {all, []string{"net", "net"}, "net", nil},
		"known to the fabric": {offered("new"), []string{"new"}, "new", nil},

		"a device":                  {devices, nil, "verbs;ofi_rxm/mlx5_1", nil},
		"a provider's device":       {devices, []string{"verbs;ofi_rxm"}, "verbs;ofi_rxm/mlx5_1", nil},
		"another device":            {devices, []string{"verbs;ofi_rxm/mlx5_0"}, "verbs;ofi_rxm/mlx5_0", nil},
		"the first device of two":   {devices, []string{"verbs;ofi_rxm/mlx5_9", "verbs;ofi_rxm/mlx5_0", "verbs;ofi_rxm"}, "verbs;ofi_rxm/mlx5_0", []string{"verbs;ofi_rxm/mlx5_9"}},
		"no such device":            {devices, []string{"verbs;ofi_rxm/mlx5_9"}, "", []string{"verbs;ofi_rxm/mlx5_9"}},
		"a device elsewhere":        {devices, []string{"net"}, "", []string{"net"}},
		"a device that is no other": {devices, []string{"verbs;ofi_rxm/"}, "verbs;ofi_rxm/mlx5_1", nil},
	} {
		t.Run(name, func(t *testing.T) {
			chosen, missing := choose(tt.infos, new(Transport).wishes(tt.wanted))
			assert.Equal(t, tt.want, opened(chosen))
			assert.Equal(t, tt.missing, missing)
		})
	}
}

func TestOffers(t *testing.T) {
	second := simfabric.TCP()
	second.Domain = "sim1"
	tr := &Transport{fabric: simfabric.New(simfabric.Config{
		Personality: simfabric.TCP(), Others: []simfabric.Personality{simfabric.Net(), second},
	})}
	tr = transportOr(tr)
	lo := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	offers := func(wanted ...string) string {
		infos, _, err := tr.offers(t.Context(), lo, wanted)
		require.NoError(t, err)
		return opened(infos)
	}
	_, unoffered, err := tr.offers(t.Context(), lo, nil)
	require.ErrorIs(t, err, ErrProviderUnavailable)
	assert.Equal(t, []string{`shm: simfabric: provider not available: "shm"`, "net", "tcp;ofi_rxm"}, unoffered)
	assert.EqualError(t, err, "provider not available: none of shm, cxi, efa, verbs;ofi_rxm; not offered: shm: simfabric: provider not available: \"shm\", net, tcp;ofi_rxm; "+
		"name a provider that both sides have, on both sides (Providers or RDMANET_PROVIDERS), or choose Dialer.Fallback, and ListenConfig.AcceptTCP, for plain TCP")
	t.Setenv(providersVariable, "auto,tcp;ofi_rxm")
	assert.Equal(t, "tcp;ofi_rxm/sim", offers())
	t.Setenv(providersVariable, " tcp;ofi_rxm,net ")
	assert.Equal(t, "tcp;ofi_rxm/sim, net/sim", offers())
	t.Setenv(providersVariable, "tcp;ofi_rxm/sim1,net")
	assert.Equal(t, "tcp;ofi_rxm/sim1, net/sim", offers())
	assert.Equal(t, "net/sim", offers("net"), "over the environment")

	_, _, err = tr.offers(t.Context(), lo, []string{"efa"})
	require.ErrorIs(t, err, ErrProviderUnavailable)
	assert.ErrorContains(t, err, "efa")
	assert.ErrorContains(t, err, "this machine offers tcp;ofi_rxm, net")
	_, _, err = tr.offers(t.Context(), lo, []string{"tcp;ofi_rxm/sim9"})
	require.ErrorIs(t, err, ErrProviderUnavailable)
	assert.EqualError(t, err, "provider tcp;ofi_rxm has no domain sim9; there are sim, sim1")
}

// lateFabric has, at first, none of the providers that are wanted.
type lateFabric struct {
	*simfabric.Network
	up bool
}

func (f *lateFabric) Providers(src netip.Addr) ([]fabric.ProviderInfo, error) {
	if !f.up {
		return offered("gni"), nil
	}
	return f.Network.Providers(src)
}

// A device that comes up is used after nothingAge, although lists of providers are kept for longer.
func TestOffersOfANewDevice(t *testing.T) {
	lo := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	for _, wanted := range [][]string{nil, {"tcp;ofi_rxm"}} {
		synctest.Test(t, func(t *testing.T) {
			f := &lateFabric{Network: simfabric.New(simfabric.Config{Personality: simfabric.TCP()})}
			tr := transportOr(NewTransport(f))
			_, _, err := tr.offers(t.Context(), lo, wanted)
			require.ErrorIs(t, err, ErrProviderUnavailable)
			f.up = true
			time.Sleep(nothingAge)
			list, _, err := tr.offers(t.Context(), lo, wanted)
			require.NoError(t, err)
			assert.Len(t, list, 1)
		})
	}
}

// slowFabric takes time to list its providers.
type slowFabric struct {
	*simfabric.Network
	listed atomic.Int64
}

func (f *slowFabric) Providers(src netip.Addr) ([]fabric.ProviderInfo, error) {
	f.listed.Add(1)
	time.Sleep(time.Millisecond)
	return f.Network.Providers(src)
}

// TestOffersAreShared: libfabric is asked once for all that ask at once, and, where there is nothing
// to offer, for all that ask within nothingAge. One that changes its list changes nobody else's.
func TestOffersAreShared(t *testing.T) {
	lo := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	for _, tt := range []struct {
		wanted []string
		found  string
		age    time.Duration
	}{
		{[]string{"tcp;ofi_rxm", "net"}, "tcp;ofi_rxm/sim, net/sim", providersAge},
		{[]string{"efa", "auto"}, "", nothingAge},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &slowFabric{Network: simfabric.New(simfabric.Config{
				Personality: simfabric.TCP(), Others: []simfabric.Personality{simfabric.Net()},
			})}
			tr := transportOr(NewCarefulTransport(f))
			ask := func() {
				list, left, err := tr.offers(t.Context(), lo, tt.wanted)
				assert.Equal(t, tt.found, opened(list))
				assert.Equal(t, tt.found == "", err != nil)
				assert.NotContains(t, left, "changed")
				clear(list)
				for i := range left {
					left[i] = "changed"
				}
			}
			for round := range int64(3) {
				var wg sync.WaitGroup
				for range 200 {
					wg.Go(ask)
				}
				wg.Wait()
				for range 200 {
					ask()
				}
				assert.Equal(t, 1+round, f.listed.Load())
				time.Sleep(tt.age)
			}
		})
	}
}
