package rdmanet_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestSoftwareIsNamed: software providers are used only where both sides name them. A dialer
// that is left without a provider learns which ones the two sides could use.
func TestSoftwareIsNamed(t *testing.T) {
	const fallback = "or choose Dialer.Fallback, and ListenConfig.AcceptTCP, for plain TCP"
	for name, tt := range map[string]struct {
		dialer, listener []string
		shm              bool // whether both sides have it
		provider         string
		err              []string
	}{
		"neither": {err: []string{
			"shm: ", "; not offered here: net, tcp;ofi_rxm; not offered at the peer: net, tcp;ofi_rxm; ",
			"name net or tcp;ofi_rxm on both sides (Providers or RDMANET_PROVIDERS), " + fallback,
		}},
		"the dialer": {dialer: []string{"tcp;ofi_rxm"}, err: []string{
			"tcp;ofi_rxm: the listener does not offer it", "name tcp;ofi_rxm or net on both sides",
		}},
		"all but shm by name": {shm: true, listener: []string{"net"}, err: []string{
			"shm: the listener does not offer it; ", "not offered at the peer: shm, tcp;ofi_rxm; ", "name shm or net or tcp;ofi_rxm on both sides",
		}},
		"the listener":      {listener: []string{"net", "auto"}, err: []string{"net: only one side offers it", "not offered here: ", "name "}},
		"both":              {dialer: []string{"auto", "tcp;ofi_rxm"}, listener: []string{"auto", "tcp;ofi_rxm"}, provider: "tcp;ofi_rxm"},
		"both, differently": {dialer: []string{"tcp;ofi_rxm"}, listener: []string{"net"}, err: []string{"name tcp;ofi_rxm or net on both sides"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Personality: simfabric.TCP(), Others: []simfabric.Personality{simfabric.Net(), simfabric.Shm()}})
			have := []string{"net", "tcp;ofi_rxm"}
			if tt.shm {
				have = append(have, "shm")
			}
			here, there := rdmanet.NewCarefulTransport(n.Only(have...)), rdmanet.NewCarefulTransport(n.Only(have...))
			rdmatest.Cleanly(t, here)
			defer there.Close()
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, Providers: tt.listener, AcceptTCP: true})
			d := rdmanet.Dialer{Transport: here, Providers: tt.dialer}
			c, err := d.Dial("rdma", l.Addr().String())
			if tt.provider != "" {
				require.NoError(t, err)
				assert.Equal(t, tt.provider, c.(*rdmanet.Conn).Info().Provider)
				require.NoError(t, c.Close())
				return
			}
			require.ErrorIs(t, err, rdmanet.ErrNoProvider)
			for _, text := range tt.err {
				require.ErrorContains(t, err, text)
			}
			d.Fallback = rdmanet.FallbackTCP
			c, err = d.Dial("rdma", l.Addr().String())
			require.NoError(t, err)
			assert.Empty(t, rdmatest.InfoOf(t, c).Provider)
			require.NoError(t, c.Close())
		})
	}
}

// TestNothingToOffer: Listen fails at once if there is nothing to offer, unless it is to accept plain TCP.
func TestNothingToOffer(t *testing.T) {
	tr := rdmanet.NewCarefulTransport(simfabric.New(simfabric.Config{Personality: simfabric.TCP()}))
	rdmatest.Cleanly(t, tr)
	lc := rdmanet.ListenConfig{Transport: tr}
	_, err := lc.Listen(context.Background(), "rdma", "127.0.0.1:0")
	require.ErrorIs(t, err, rdmanet.ErrProviderUnavailable)
	require.ErrorContains(t, err, "none of shm, cxi, efa, verbs;ofi_rxm; not offered: shm: ")
	require.ErrorContains(t, err, ", tcp;ofi_rxm; name a provider that both sides have, on both sides (Providers or RDMANET_PROVIDERS)")
	var told journal
	lc.AcceptTCP, lc.Logger = true, told.logger()
	l, err := lc.Listen(context.Background(), "rdma", "127.0.0.1:0")
	require.NoError(t, err)
	entry := told.one(t, slog.LevelWarn, "listening for plain TCP only")
	assert.Equal(t, l.Addr().String(), entry["listener"])
	assert.Contains(t, entry["error"], "none of shm")
	require.NoError(t, l.Close())
}

// TestSharedMemoryIsSuggested: shm is suggested although the dialer has another address than the
// listener, since one host may have several.
func TestSharedMemoryIsSuggested(t *testing.T) {
	n := simfabric.New(simfabric.Config{Personality: simfabric.TCP(), Others: []simfabric.Personality{simfabric.Shm()}})
	here, there := rdmanet.NewCarefulTransport(n.Only("tcp;ofi_rxm", "shm")), rdmanet.NewCarefulTransport(n.Only("tcp;ofi_rxm", "shm"))
	rdmatest.Cleanly(t, here, there)
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, Providers: []string{"tcp;ofi_rxm"}})
	d := rdmanet.Dialer{Transport: here, Providers: []string{"shm"}, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	_, err := d.Dial("rdma", l.Addr().String())
	require.ErrorContains(t, err, "name shm or tcp;ofi_rxm on both sides")
}

// noLibrary is the fabric of a host without libfabric.
type noLibrary struct{}

func (noLibrary) Providers(netip.Addr) ([]fabric.ProviderInfo, error) {
	return nil, fmt.Errorf("%w: install it", fabric.ErrUnsupported)
}

func (noLibrary) Open(string, netip.Addr) (fabric.Endpoint, error) { panic("not listed") }

// TestListenFailsQuietly: a Listen that fails does not log that it listens.
func TestListenFailsQuietly(t *testing.T) {
	tr := rdmanet.NewTransport(noLibrary{})
	require.NoError(t, tr.Close())
	var told journal
	lc := rdmanet.ListenConfig{Transport: tr, AcceptTCP: true, Logger: told.logger()}
	_, err := lc.Listen(context.Background(), "rdma", "127.0.0.1:0")
	require.ErrorIs(t, err, net.ErrClosed)
	require.Empty(t, told.String())
}

// TestListenerWithoutLibfabric: a dialer learns that it is the listener that has no libfabric.
func TestListenerWithoutLibfabric(t *testing.T) {
	here, there := rdmanet.NewTransport(simfabric.New(simfabric.Config{Personality: simfabric.Net()})), rdmanet.NewTransport(noLibrary{})
	rdmatest.Cleanly(t, here, there)
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, AcceptTCP: true})
	d := rdmanet.Dialer{Transport: here}
	_, err := d.Dial("rdma", l.Addr().String())
	require.ErrorIs(t, err, rdmanet.ErrNoProvider)
	require.NotErrorIs(t, err, rdmanet.ErrUnsupported)
	require.ErrorContains(t, err, "libfabric: not at the listener: no libfabric: install it")
	require.ErrorContains(t, err, "; mend that there, or choose Dialer.Fallback, ")
	require.NotContains(t, err.Error(), "on both sides (")
}
