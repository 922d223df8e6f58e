//go:build linux && cgo

package rdmanet_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// ofi_rxm refuses connections of peers that have buffers of another size, and tries to connect
// again for as long as it has something to send. So a dial does not try that provider.
func TestOtherSettings(t *testing.T) {
	const differ = `settings of libfabric differ: "FI_OFI_RXM_BUFFER_SIZE=16384" and "FI_OFI_RXM_BUFFER_SIZE=8448"`
	cmd := process(t, "counterpart", "tcp;ofi_rxm,shm", "")
	cmd.Env = append(cmd.Env, "FI_OFI_RXM_BUFFER_SIZE=16384")
	other := listening(t, cmd)
	tr := new(rdmanet.Transport)
	cleanly(t, tr)

	d := &rdmanet.Dialer{Transport: tr, Providers: []string{"tcp;ofi_rxm", "shm"}, Timeout: patience}
	o := order{exchange, 7, 1 << 20}
	c := give(t, d, other.addr, o)
	assert.Equal(t, "shm", c.Info().Provider)
	assert.Equal(t, []rdmanet.Refusal{{Provider: "tcp;ofi_rxm", Reason: differ}}, c.Info().Refused)
	require.NoError(t, o.carryOut(c, o.key+1, patience))

	d = &rdmanet.Dialer{Transport: tr, Providers: []string{"tcp;ofi_rxm"}, Timeout: patience}
	_, err := d.Dial("rdma", other.addr)
	require.ErrorIs(t, err, rdmanet.ErrNoProvider)
	assert.ErrorContains(t, err, differ)
}
