//go:build linux && cgo

package systemtest

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// ofi_rxm refuses connections of peers that have buffers of another size, and tries to connect
// again for as long as it has something to send. So a dial does not try that provider.
func TestOtherSettings(t *testing.T) {
	const differ = `settings of libfabric differ: "FI_OFI_RXM_BUFFER_SIZE=16384" and "FI_OFI_RXM_BUFFER_SIZE=8448"`
	cmd := rdmatest.Process(t, "counterpart", "tcp;ofi_rxm,shm", "")
	cmd.Env = append(cmd.Env, "FI_OFI_RXM_BUFFER_SIZE=16384")
	addr := rdmatest.Listening(t, cmd)
	tr := new(rdmanet.Transport)
	rdmatest.Cleanly(t, tr)

	d := &rdmanet.Dialer{Transport: tr, Providers: []string{"tcp;ofi_rxm", "shm"}, Timeout: rdmatest.Patience}
	o := rdmatest.Order{Duty: rdmatest.Exchange, Key: 7, Size: 1 << 20}
	c := rdmatest.Give(t, d, addr, o)
	assert.Equal(t, "shm", c.Info().Provider)
	assert.Equal(t, []rdmanet.Refusal{{Provider: "tcp;ofi_rxm", Reason: differ}}, c.Info().Refused)
	require.NoError(t, o.CarryOut(c, o.Key+1, rdmatest.Patience))

	d = &rdmanet.Dialer{Transport: tr, Providers: []string{"tcp;ofi_rxm"}, Timeout: rdmatest.Patience}
	_, err := d.Dial("rdma", addr)
	require.ErrorIs(t, err, rdmanet.ErrNoProvider)
	assert.ErrorContains(t, err, differ)
}
