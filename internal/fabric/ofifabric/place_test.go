//go:build linux && cgo

package ofifabric

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
)

func TestPick(t *testing.T) {
	four, six := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	ip := func(domain string, source netip.Addr) place { return place{domain: domain, ip: true, source: source} }
	dev := func(domain, pci string) place { return place{domain: domain, nic: ofi.NIC{PCI: pci}} }
	verbs := []place{ip("mlx5_0", netip.MustParseAddr("192.0.2.9")), ip("mlx5_1", six), ip("mlx5_1", four), ip("mlx5_1-xrc", four)}
	ib := func(domain string) place { return place{domain: domain, ib: true, nic: ofi.NIC{PCI: "0000:00:07.0"}} }
	roce := []place{ib("mlx5_0"), ib("mlx5_0"), ip("mlx5_0", four), ib("mlx5_1"), ip("mlx5_0", six)}
	efa := []place{dev("efa_0-rdm", "0000:00:06.0"), dev("efa_1-rdm", "0000:00:07.0")}
	shm := []place{{domain: "shm"}}
	link := netip.MustParseAddr("fe80::1")
	twice := []place{ip("eth0", link.WithZone("eth0")), ip("eth1", link.WithZone("eth1"))}
	for name, tt := range map[string]struct {
		list   []place
		domain string
		src    netip.Addr
		near   string // the device that has src
		want   int
	}{
		"none":                            {nil, "", four, "", -1},
		"the address":                     {verbs, "", four, "", 2},
		"the address, mapped to IPv6":     {verbs, "", netip.AddrFrom16(four.As16()), "", 2},
		"the other address":               {verbs, "", six, "", 1},
		"another address":                 {verbs, "", netip.MustParseAddr("192.0.2.2"), "", -1},
		"no address":                      {verbs, "", netip.Addr{}, "", 0},
		"all addresses":                   {verbs, "", netip.IPv4Unspecified(), "", 0},
		"an address that is not said":     {[]place{ip("eth0", netip.Addr{})}, "", four, "", 0},
		"a domain with the address":       {verbs, "mlx5_1", four, "", 2},
		"a domain of the family":          {verbs, "mlx5_1", netip.MustParseAddr("2001:db8::2"), "", 1},
		"a domain elsewhere":              {verbs, "mlx5_0", four, "", 0},
		"a domain of the other family":    {verbs, "mlx5_0", six, "", 0},
		"not an address of the link":      {[]place{ip("eth0", netip.MustParseAddr("fe80::1")), ip("eth0", six)}, "eth0", netip.IPv6Loopback(), "", 1},
		"a domain, no address":            {verbs, "mlx5_1", netip.Addr{}, "", 1},
		"no such domain":                  {verbs, "mlx5_", four, "", -1},
		"a device by its place":           {efa, "", four, "0000:00:07.0", 1},
		"a device that does not tell":     {efa, "", four, "", 0},
		"a device by its name":            {efa, "efa_0-rdm", four, "0000:00:07.0", 0},
		"InfiniBand, but the address":     {roce, "", four, "0000:00:07.0", 2},
		"InfiniBand, but no address":      {roce, "", netip.Addr{}, "", 2},
		"InfiniBand, but all addresses":   {roce, "", netip.IPv6Unspecified(), "", 2},
		"InfiniBand, but another address": {roce, "", netip.MustParseAddr("192.0.2.2"), "0000:00:07.0", -1},
		"InfiniBand alone":                {[]place{ib("mlx5_1")}, "", four, "0000:00:07.0", -1},
		"InfiniBand beside IP, by name":   {roce, "mlx5_0", netip.MustParseAddr("192.0.2.2"), "", 2},
		"InfiniBand and IPv6, by name":    {[]place{ib("mlx5_0"), ip("mlx5_0", six)}, "mlx5_0", four, "", 1},
		"InfiniBand by name":              {roce, "mlx5_1", four, "", 3},
		"InfiniBand by name, no address":  {roce, "mlx5_1", netip.Addr{}, "", 3},
		"an address of two links":         {twice, "", link.WithZone("eth1"), "", 1},
		"the other link":                  {twice, "", link.WithZone("eth0"), "", 0},
		"neither link":                    {twice, "", link.WithZone("eth2"), "", -1},
		"no link is named":                {twice, "", link, "", 0},
		"a link that does not tell":       {[]place{ip("eth0", link)}, "", link.WithZone("eth1"), "", 0},
		"memory is everywhere":            {shm, "", four, "0000:00:07.0", 0},
		"memory is everywhere, by name":   {shm, "shm", six, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			near := func(nic ofi.NIC) bool { return sameDevice(nic, ofi.NIC{PCI: tt.near}) }
			assert.Equal(t, tt.want, pick(tt.list, tt.domain, tt.src, near))
		})
	}
}

func TestSameDevice(t *testing.T) {
	assert.False(t, sameDevice(ofi.NIC{}, ofi.NIC{}), "nothing tells")
	assert.True(t, sameDevice(ofi.NIC{Link: "0A:00:00:00:00:01"}, ofi.NIC{PCI: "0000:00:07.0", Link: "0a:00:00:00:00:01"}))
	assert.False(t, sameDevice(ofi.NIC{PCI: "0000:00:06.0"}, ofi.NIC{PCI: "0000:00:07.0"}))
}

func TestInterfaceOf(t *testing.T) {
	for _, a := range []string{"127.0.0.1", "::ffff:127.0.0.1"} {
		name, mac := interfaceOf(netip.MustParseAddr(a))
		assert.Equal(t, "lo", name)
		assert.Empty(t, mac)
	}
	name, _ := interfaceOf(netip.MustParseAddr("198.51.100.7"))
	assert.Empty(t, name)
}

func TestPCIOf(t *testing.T) {
	class := t.TempDir()
	for name, device := range map[string]string{
		"eth0": "../../../0000:3b:00.1", "eth1": "../../../virtio1", "br0": "",
	} {
		require.NoError(t, os.Mkdir(filepath.Join(class, name), 0o700))
		if device != "" {
			require.NoError(t, os.Symlink(device, filepath.Join(class, name, "device")))
		}
	}
	for name, want := range map[string]string{"eth0": "0000:3b:00.1", "eth1": "", "br0": "", "none": "", "": ""} {
		assert.Equal(t, want, pciOf(class, name), name)
	}
}

// libfabric is asked for more than is wanted, but only entries that match are used.
func TestProbeKeepsToTheDomain(t *testing.T) {
	lo := netip.MustParseAddr("127.0.0.1")
	for _, tt := range []struct{ domain, want string }{{"", ""}, {"lo", "lo"}} {
		w, err := probe("tcp;ofi_rxm", tt.domain, lo)
		require.NoError(t, err)
		assert.Equal(t, tt.want, w.domain)
		assert.Equal(t, lo.String(), w.Source)
	}
	list, err := getInfo(ofi.Hints{})
	require.NoError(t, err)
	defer list.Free()
	w := wanted{Hints: ofi.Hints{Provider: "tcp;ofi_rxm"}, provider: "tcp;ofi_rxm", domain: "lo"}
	entries := w.matching(list)
	require.NotEmpty(t, entries)
	for _, info := range entries {
		assert.Equal(t, "tcp;ofi_rxm", info.Provider())
		assert.Equal(t, "lo", info.Domain())
	}
}

// Zones are compared by name, like those in the addresses of conns.
func TestNamed(t *testing.T) {
	for in, want := range map[string]string{
		"fe80::1": "fe80::1", "fe80::1%1": "fe80::1%lo", "fe80::1%lo": "fe80::1%lo",
		"fe80::1%999999999": "fe80::1%999999999", "127.0.0.1": "127.0.0.1",
	} {
		assert.Equal(t, want, named(netip.MustParseAddr(in)).String())
	}
	assert.Equal(t, netip.Addr{}, named(netip.Addr{}))
}
