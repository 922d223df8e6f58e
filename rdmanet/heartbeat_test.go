package rdmanet_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestHeartbeatsAreAgreedOn: a side sends heartbeats over the fabric only to a peer that has
// said that it answers them.
func TestHeartbeatsAreAgreedOn(t *testing.T) {
	for name, features := range map[string]uint64{"both": framing.Features, "one": 0} {
		t.Run(name, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Personality: simfabric.TCP()})
			here, there := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
			rdmatest.Cleanly(t, here)
			defer there.Close()
			here.DeadAfter, there.DeadAfter = time.Second, time.Second
			there.Speak(framing.MinVersion, framing.MaxVersion, features)
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
			c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: here}, l)
			frames := func() uint64 { return here.Stats().Providers["tcp;ofi_rxm"].FramesSent }
			before := frames()
			if features == 0 {
				time.Sleep(3 * time.Second)
				assert.Equal(t, before, frames())
			} else {
				rdmatest.Eventually(t, func() bool { return frames() >= before+4 }, "two Pings and two Pongs")
			}
			rdmatest.Echo(t, c, s)
			rdmatest.CloseAll(t, c, s)
		})
	}
}
