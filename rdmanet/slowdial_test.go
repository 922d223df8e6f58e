package rdmanet_test

import (
	"context"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// lateReady is a listener's control connection. Its side's Ready, which follows preamble, Hello and
// Select, leaves at a certain time.
type lateReady struct {
	net.Conn
	at     time.Time
	writes int
}

func (c *lateReady) Write(b []byte) (int, error) {
	if c.writes++; c.writes == 4 {
		time.Sleep(time.Until(c.at))
	}
	return c.Conn.Write(b)
}

// TestSlowHandshake: if the two sides share one provider, a dial may need most of its time for it.
func TestSlowHandshake(t *testing.T) {
	const timeout, most = 3 * time.Second, 1700 * time.Millisecond
	test := func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		late := func(c net.Conn) net.Conn { return &lateReady{Conn: c, at: time.Now().Add(most)} }
		lc := rdmanet.ListenConfig{Transport: tr, Providers: providers}
		l, err := lc.ListenOn(wrapped{tcpListener(t), late})
		require.NoError(t, err)
		defer l.Close()
		start := time.Now()
		c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr, Providers: providers, Timeout: timeout}, l.(*rdmanet.Listener))
		assert.GreaterOrEqual(t, time.Since(start), most)
		rdmatest.Echo(t, c, s)
		rdmatest.CloseAll(t, c, s)
	}
	t.Run("simulated", func(t *testing.T) { test(t, simulated(t, simfabric.TCP()), nil) })
	rdmatest.Over(t, test)
}

// TestSilentToTheEnd: a dial whose only provider brings nothing ends with a time-out, when its time is over.
func TestSilentToTheEnd(t *testing.T) {
	const timeout = 1500 * time.Millisecond
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.Silent()})
	here, there := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
	rdmatest.Cleanly(t, here)
	defer there.Close()
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
	start := time.Now()
	_, err := (&rdmanet.Dialer{Transport: here, Timeout: timeout}).Dial("rdma", l.Addr().String())
	assert.GreaterOrEqual(t, time.Since(start), timeout)
	for _, target := range []error{context.DeadlineExceeded, os.ErrDeadlineExceeded, rdmanet.ErrHandshakeTimeout} {
		assert.ErrorIs(t, err, target)
	}
	assert.NotErrorIs(t, err, rdmanet.ErrNoProvider)
	assert.ErrorContains(t, err, "the fabric is silent")
	var ne net.Error
	require.ErrorAs(t, err, &ne)
	assert.True(t, ne.Timeout())
	assert.Equal(t, map[string]uint64{"verbs;ofi_rxm": 1}, here.Stats().PathFailures)
}
