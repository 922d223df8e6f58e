//go:build cgo

package rdmanet_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestSpareWithoutName: others may have cleaned up /dev/shm while a spare waited, so that no peer
// can attach to it. The peer then gets another endpoint.
func TestSpareWithoutName(t *testing.T) {
	here, there := new(rdmanet.Transport), new(rdmanet.Transport)
	cleanly(t, here)
	cleanly(t, there)
	started := time.Now()
	l := listen(t, rdmanet.ListenConfig{Transport: there, Providers: []string{"shm"}})
	eventually(t, func() bool { return there.Stats().Providers["shm"].Endpoints == 1 }, "a spare")
	var names []string
	eventually(t, func() (found bool) {
		var err error
		names, err = regionsOf(started, os.Getpid())
		require.NoError(t, err)
		return len(names) > 0
	}, "its name")
	for _, name := range names {
		require.NoError(t, os.Remove(name))
	}
	c, s := meet(t, &rdmanet.Dialer{Transport: here, Providers: []string{"shm"}, Timeout: patience}, l)
	echo(t, c, s)
	closeAll(t, c, s)
}
