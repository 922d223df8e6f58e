package rdmanet_test

import (
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// keepAlives counts the open sockets that have keep-alive on, by the seconds until their first probe.
func keepAlives(t *testing.T) map[int]int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	idle := make(map[int]int)
	for _, e := range list {
		fd, err := strconv.Atoi(e.Name())
		require.NoError(t, err)
		if on, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE); err != nil || on == 0 {
			continue
		}
		if s, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE); err == nil {
			idle[s]++
		}
	}
	return idle
}

func TestKeepAliveConfig(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	tr.DeadAfter = 99 * time.Second
	mine := net.KeepAliveConfig{Enable: true, Idle: 1234 * time.Second}
	theirs := net.KeepAliveConfig{Enable: true, Idle: 2345 * time.Second}
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, KeepAliveConfig: theirs})
	c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr, KeepAliveConfig: mine}, l)
	assert.Equal(t, 1, keepAlives(t)[1234], "the dialer's")
	assert.Equal(t, 1, keepAlives(t)[2345], "the listener's")
	rdmatest.CloseAll(t, c, s)

	l2 := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
	c, s = rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr}, l2)
	assert.Equal(t, 2, keepAlives(t)[33], "what suits DeadAfter")
	rdmatest.CloseAll(t, c, s)
}
