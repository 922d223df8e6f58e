//go:build linux && cgo && mixed

package rdmanet_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
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
			cmd := process(t, "counterpart", providers, "")
			cmd.Env = append(cmd.Env, "RDMANET_LIBFABRIC="+tt.library)
			other := listening(t, cmd)
			tr := new(rdmanet.Transport)
			cleanly(t, tr)
			d := &rdmanet.Dialer{Transport: tr, Providers: list(providers), Timeout: patience}
			o := order{exchange, 7, 1 << 20}
			c := give(t, d, other.addr, o)
			info := c.Info()
			assert.Equal(t, tt.want, info.Provider)
			if tt.want != "shm" {
				require.NotEmpty(t, info.Refused)
				assert.Equal(t, "shm", info.Refused[0].Provider)
				assert.Regexp(t, `^library versions differ: "[0-9.]+ \w+" and "[0-9.]+ \w+"$`, info.Refused[0].Reason)
			}
			require.NoError(t, o.carryOut(c, o.key+1, patience))
		})
	}
}
