package doctor

import (
	"bytes"
	"encoding/json"
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func TestInventoryText(t *testing.T) {
	lo, lo6, eth := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1"), netip.MustParseAddr("192.0.2.1")
	verbs := rdmanet.ProviderInfo{
		Provider: "verbs;ofi_rxm", Domain: "mlx5_0", Fabric: "ib", Addresses: []netip.Addr{eth}, Protocol: 11, ProtocolVersion: 1,
		InjectSize: 192, MaxMsgSize: 8 << 20, CQDataSize: 4, Order: "SAS SAW", MRMode: "LOCAL VIRT_ADDR", WaitObject: "fd", LargePath: "RDMA write", Rank: 1,
	}
	elsewhere := verbs
	elsewhere.Rank, elsewhere.Reason = 0, "not here"
	tcp := rdmanet.ProviderInfo{Provider: "tcp", Domain: "lo", Fabric: "any", MaxMsgSize: math.MaxUint64, WaitObject: "fd", Rank: 2}
	inv := Inventory{Compiled: "1.17", InUse: "2.6", Choices: []Choice{
		{eth, []rdmanet.ProviderInfo{verbs, tcp, {Provider: "shm", Reason: "needs room"}, {Provider: "efa", Reason: "no"}, {Provider: "cxi", Reason: "no"}}},
		{lo, []rdmanet.ProviderInfo{tcp, elsewhere, {Provider: "net", Domain: "eth9", Reason: "has no such domain"}, {Provider: "efa", Reason: "no"}}},
		{lo6, []rdmanet.ProviderInfo{tcp, elsewhere, {Provider: "net", Domain: "eth9", Reason: "has no such domain"}, {Provider: "efa", Reason: "no device with this address"}}},
	}}
	var b bytes.Buffer
	require.NoError(t, inv.WriteText(&b))
	var lines []string // without the widths of columns
	for line := range strings.Lines(b.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	assert.Equal(t, []string{
		"libfabric 2.6, compiled with 1.17",
		"",
		"PROVIDER DOMAIN FABRIC ADDRESSES PROTOCOL INJECT MAX MESSAGE CQ DATA ORDER MR MODE WAIT LARGE WRITES",
		"verbs;ofi_rxm mlx5_0 ib 192.0.2.1 11.1 192 8388608 4 SAS SAW LOCAL VIRT_ADDR fd RDMA write",
		"tcp lo any - 0.0 0 unlimited 0 - - fd -",
		"",
		"for conns at 192.0.2.1:",
		"RANK PROVIDER DOMAIN WHY NOT",
		"1 verbs;ofi_rxm mlx5_0 -",
		"2 tcp lo -",
		"- shm - needs room",
		"not there: efa, cxi",
		"",
		"for conns at 127.0.0.1 ::1:",
		"RANK PROVIDER DOMAIN WHY NOT",
		"2 tcp lo -",
		"- verbs;ofi_rxm mlx5_0 not here",
		"- net eth9 has no such domain",
		"not there: efa",
	}, lines)

	b.Reset()
	require.NoError(t, inv.WriteJSON(&b))
	var again Inventory
	require.NoError(t, json.Unmarshal(b.Bytes(), &again))
	assert.Equal(t, inv, again)
}

func TestLocalAddrs(t *testing.T) {
	one, err := LocalAddrs("::1")
	require.NoError(t, err)
	assert.Equal(t, []netip.Addr{netip.IPv6Loopback()}, one)
	_, err = LocalAddrs("nonsense")
	require.Error(t, err)
	all, err := LocalAddrs("")
	require.NoError(t, err)
	assert.Contains(t, all, netip.MustParseAddr("127.0.0.1"))
}
