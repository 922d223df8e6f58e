package rdmanet

import (
	"net/netip"
	"testing"

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

func TestChoose(t *testing.T) {
	all := offered("udp;ofi_rxd", "tcp;ofi_rxm", "sockets", "net", "verbs;ofi_rxm", "shm")
	for name, tt := range map[string]struct {
		infos   []fabric.ProviderInfo
		wanted  []string
		want    string
		missing []string
		err     string
	}{
		"automatic":           {all, nil, "shm, verbs;ofi_rxm, net, tcp;ofi_rxm", nil, ""},
		"nothing":             {nil, nil, "none", nil, ""},
		"only proofs":         {offered("sockets", "udp;ofi_rxd"), nil, "none", nil, ""},
		"the user's order":    {all, []string{"tcp;ofi_rxm", "shm"}, "tcp;ofi_rxm, shm", nil, ""},
		"on request":          {all, []string{"sockets"}, "sockets", nil, ""},
		"one is not here":     {all, []string{"efa", "net"}, "net", []string{"efa"}, ""},
		"twice":               {all, []string{"net", "net"}, "net", nil, ""},
		"known to the fabric": {offered("new"), []string{"new"}, "new", nil, ""},
		"unknown":             {all, []string{"net", "tpc"}, "", nil, `unknown provider "tpc"; this machine offers udp;ofi_rxd, tcp;ofi_rxm`},
	} {
		t.Run(name, func(t *testing.T) {
			chosen, missing, err := choose(tt.infos, tt.wanted)
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tt.want, names(chosen))
			assert.Equal(t, tt.missing, missing)
		})
	}
}

func TestOffers(t *testing.T) {
	tr := &Transport{fabric: simfabric.New(simfabric.Config{
		Personality: simfabric.TCP(), Others: []simfabric.Personality{simfabric.Net()},
	})}
	tr = transportOr(tr)
	lo := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	offers := func(wanted ...string) string {
		infos, err := tr.offers(lo, wanted)
		require.NoError(t, err)
		return names(infos)
	}
	assert.Equal(t, "net, tcp;ofi_rxm", offers())
	t.Setenv(providersVariable, " tcp;ofi_rxm,net ")
	assert.Equal(t, "tcp;ofi_rxm, net", offers())
	assert.Equal(t, "net", offers("net"), "over the environment")

	_, err := tr.offers(lo, []string{"efa"})
	require.ErrorIs(t, err, ErrProviderUnavailable)
	assert.ErrorContains(t, err, "efa")
	assert.ErrorContains(t, err, "this machine offers tcp;ofi_rxm, net")
}

func TestHostID(t *testing.T) {
	first, again := hostID(), hostID()
	assert.NotZero(t, first)
	assert.Equal(t, first, again)
}
