//go:build cgo

package rdmanet

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/ofifabric"
)

// An endpoint of this process that has been closed can no longer be met. libfabric would
// still find it, and crash.
func TestSelfPairIsGone(t *testing.T) {
	f := ofifabric.New()
	open := func() *selfPair {
		ep, err := f.Open("shm", netip.Addr{})
		require.NoError(t, err)
		return newSelfPair(ep)
	}
	for name, end := range map[string]func(e *selfPair){
		"shut down": func(e *selfPair) { require.NoError(t, e.Shutdown()) },
		"closed":    func(e *selfPair) { require.NoError(t, e.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := open(), open()
			end(b)
			_, err := a.Insert(b.Name())
			require.ErrorContains(t, err, "is closed")
			if name == "shut down" {
				require.NoError(t, b.Close())
			}
			c := open() // one that is opened later can be met
			_, err = a.Insert(c.Name())
			require.NoError(t, err)
			require.NoError(t, a.Shutdown())
			require.NoError(t, a.Close())
			require.NoError(t, c.Shutdown())
			require.NoError(t, c.Close())
		})
	}
}
