package rdmanet_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestHeartbeatsCount: heartbeats on the control connection say how many messages have crossed the fabric. A
// single one that is lost ends the peer, and with it its conns.
func TestHeartbeatsCount(t *testing.T) {
	n := simfabric.New(simfabric.Config{Personality: simfabric.TCP()})
	here, there := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
	rdmatest.Cleanly(t, here)
	defer there.Close()
	here.DeadAfter, there.DeadAfter = time.Second, time.Second
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
	c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: here}, l)
	rdmatest.Echo(t, c, s)
	frames := func() uint64 { return here.Stats().Providers["tcp;ofi_rxm"].FramesSent }
	before := frames()
	time.Sleep(3 * here.DeadAfter)
	require.Equal(t, before, frames(), "heartbeats send nothing over the fabric")
	rdmatest.Echo(t, c, s)
	n.Lose(1)
	_, err := c.Write([]byte("lost"))
	require.NoError(t, err)
	_, err = s.Read(make([]byte, 4))
	require.ErrorContains(t, err, "connection reset")
	require.ErrorContains(t, s.Info().Lost, "lost messages")
	rdmatest.CloseAll(t, c, s)
}
