//go:build cgo

package rdmanet_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/shmdir"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestFullSharedMemory: while /dev/shm is full, a dial takes the next provider, or fails and says
// why, and existing conns go on. Shared memory is used again soon after there is room.
func TestFullSharedMemory(t *testing.T) {
	least := runtime.NumCPU() * shmdir.PerCPU // what libfabric wants free to offer shm, in bytes
	if !testenv.OwnShm(t, fmt.Sprintf("size=%d", least+5*shmdir.PerEndpoint)) {
		return
	}
	here, there := new(rdmanet.Transport), new(rdmanet.Transport)
	rdmatest.Cleanly(t, here, there)
	both := []string{"shm", testenv.Native}
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, Providers: both})
	call := func(providers ...string) (c, s *rdmanet.Conn, err error) {
		d := &rdmanet.Dialer{Transport: here, Providers: providers, DisableReuse: true, Timeout: rdmatest.Patience}
		nc, err := d.DialContext(t.Context(), "rdma", l.Addr().String())
		if err != nil {
			return nil, nil, err
		}
		return nc.(*rdmanet.Conn), rdmatest.Accept(t, l), nil
	}
	early, served, err := call(both...)
	require.NoError(t, err)
	require.Equal(t, "shm", early.Info().Provider)
	free := func() uint64 {
		var st unix.Statfs_t
		require.NoError(t, unix.Statfs(shmdir.Dir, &st))
		return st.Bavail * uint64(st.Bsize)
	}
	room := free()
	settle := func() {
		require.Eventually(t, func() bool { return free() >= room }, rdmatest.Patience, time.Millisecond, "earlier peers are gone")
	}
	for _, leave := range []int64{0, 64 << 10, int64(least) - 3<<20} {
		settle()
		empty := testenv.Fill(t, leave)
		for range 2000 { // enough to use all slots of the regions' queues
			rdmatest.Echo(t, early, served)
		}
		_, _, err = call("shm")
		require.ErrorContains(t, err, "/dev/shm", "%d bytes left", leave)
		c, s, err := call(both...)
		require.NoError(t, err)
		assert.Equal(t, testenv.Native, c.Info().Provider, "%d bytes left", leave)
		rdmatest.Echo(t, c, s)
		rdmatest.CloseAll(t, c, s)
		empty()
		settle()
		// A listener that looked for its providers meanwhile looks again after providersAge, 10 seconds.
		require.Eventually(t, func() bool {
			c, s, err = call("shm")
			return err == nil
		}, 2*rdmatest.Patience, 10*time.Millisecond, "%d bytes were left, now there is room", leave)
		rdmatest.Echo(t, c, s)
		rdmatest.CloseAll(t, c, s)
	}
	rdmatest.CloseAll(t, early, served)
}
