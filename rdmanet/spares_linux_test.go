//go:build cgo

package rdmanet_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestSpareWithoutName: others may have cleaned up /dev/shm while a spare waited, so that no peer
// can attach to it. The peer then gets another endpoint.
func TestSpareWithoutName(t *testing.T) {
	here, there := new(rdmanet.Transport), new(rdmanet.Transport)
	rdmatest.Cleanly(t, here, there)
	started := time.Now()
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, Providers: []string{"shm"}})
	rdmatest.Eventually(t, func() bool { return there.Stats().Providers["shm"].Endpoints == 1 }, "a spare")
	var names []string
	rdmatest.Eventually(t, func() (found bool) {
		var err error
		names, err = rdmatest.RegionsOf(started, os.Getpid())
		require.NoError(t, err)
		return len(names) > 0
	}, "its name")
	for _, name := range names {
		require.NoError(t, os.Remove(name))
	}
	c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: here, Providers: []string{"shm"}, Timeout: rdmatest.Patience}, l)
	rdmatest.Echo(t, c, s)
	rdmatest.CloseAll(t, c, s)
}
