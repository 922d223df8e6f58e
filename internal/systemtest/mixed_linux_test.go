//go:build linux && cgo && mixed

package systemtest

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestMixedLibraries: two processes with different libfabrics do not use shared memory, but the
// next provider. RDMANET_TEST_OTHER_LIBFABRIC names the file of the other library.
func TestMixedLibraries(t *testing.T) {
	const variable, providers = "RDMANET_TEST_OTHER_LIBFABRIC", "shm,tcp;ofi_rxm"
	library := os.Getenv(variable)
	require.NotEmpty(t, library, "the file of another libfabric, in "+variable)
	for name, tt := range map[string]struct {
		library, want string
	}{
		"another": {library, "tcp;ofi_rxm"},
		"equal":   {ofi.LibraryPath(), "shm"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := rdmatest.Process(t, "counterpart", providers, "")
			cmd.Env = append(cmd.Env, "RDMANET_LIBFABRIC="+tt.library)
			addr := rdmatest.Listening(t, cmd)
			tr := new(rdmanet.Transport)
			rdmatest.Cleanly(t, tr)
			d := &rdmanet.Dialer{Transport: tr, Providers: rdmatest.ProviderList(providers), Timeout: rdmatest.Patience}
			o := rdmatest.Order{Duty: rdmatest.Exchange, Key: 7, Size: 1 << 20}
			c := rdmatest.Give(t, d, addr, o)
			info := c.Info()
			assert.Equal(t, tt.want, info.Provider)
			if tt.want != "shm" {
				require.NotEmpty(t, info.Refused)
				assert.Equal(t, "shm", info.Refused[0].Provider)
				assert.Regexp(t, `^library versions differ: "[0-9.]+ \w+" and "[0-9.]+ \w+"$`, info.Refused[0].Reason)
			}
			require.NoError(t, o.CarryOut(c, o.Key+1, rdmatest.Patience))
		})
	}
}
