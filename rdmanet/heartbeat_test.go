package rdmanet_test

import (
	"testing"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestHeartbeatsOverTheFabric: heartbeats on the control connection have the fabric tried, too.
func TestHeartbeatsOverTheFabric(t *testing.T) {
	n := simfabric.New(simfabric.Config{Personality: simfabric.TCP()})
	here, there := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
	rdmatest.Cleanly(t, here)
	defer there.Close()
	here.DeadAfter, there.DeadAfter = time.Second, time.Second
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
	c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: here}, l)
	frames := func() uint64 { return here.Stats().Providers["tcp;ofi_rxm"].FramesSent }
	before := frames()
	rdmatest.Eventually(t, func() bool { return frames() >= before+4 }, "two Pings and two Pongs")
	rdmatest.Echo(t, c, s)
	rdmatest.CloseAll(t, c, s)
}
