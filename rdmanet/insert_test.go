package rdmanet_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestBlockingInsert: a provider that takes long to insert an address (efa) holds up that
// dial, until its timeout, but no other conn and no heartbeat.
func TestBlockingInsert(t *testing.T) {
	g := newRigged(simfabric.EFA())
	here, there := rdmanet.NewTransport(g), rdmanet.NewTransport(g)
	for _, tr := range []*rdmanet.Transport{here, there} {
		tr.DeadAfter = time.Second
	}
	rdmatest.Cleanly(t, here)
	t.Cleanup(func() { require.NoError(t, there.Close()) })
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
	a, b := rdmatest.Meet(t, &rdmanet.Dialer{Transport: here, DisableReuse: true}, l)
	g.gated.Store(true)

	start := time.Now()
	d := &rdmanet.Dialer{Transport: here, DisableReuse: true, Timeout: time.Second}
	_, err := d.DialContext(t.Context(), "rdma", l.Addr().String())
	require.Error(t, err)
	assert.Less(t, time.Since(start), rdmatest.Patience/2)
	assert.EqualValues(t, 1, g.waiting.Load(), "it is still under way")
	patient := make(chan error)
	go func() {
		c, err := (&rdmanet.Dialer{Transport: here, DisableReuse: true}).DialContext(t.Context(), "rdma", l.Addr().String())
		if err == nil {
			err = c.Close()
		}
		patient <- err
	}()
	for since := time.Now(); time.Since(since) < 2*there.DeadAfter; time.Sleep(there.DeadAfter / 10) {
		rdmatest.Echo(t, a, b)
	}
	close(g.gate)
	require.NoError(t, <-patient)
	rdmatest.Echo(t, a, b)
	rdmatest.CloseAll(t, a, b)
}

// TestBlockingInsertOfListener: if it holds up the listening side, the dialer is told in time.
func TestBlockingInsertOfListener(t *testing.T) {
	p := simfabric.Shm() // an endpoint for each peer, which waits for the call when it is closed
	p.SameHost = false
	g := newRigged(p)
	here, there := rdmanet.NewTransport(g.Network), rdmanet.NewTransport(g)
	t.Cleanup(func() {
		require.NoError(t, here.Close())
		require.NoError(t, there.Close())
	})
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, HandshakeTimeout: 500 * time.Millisecond})
	g.gated.Store(true)
	dialed := make(chan error, 1)
	go func() {
		_, err := (&rdmanet.Dialer{Transport: here}).DialContext(t.Context(), "rdma", l.Addr().String())
		dialed <- err
	}()
	select {
	case err := <-dialed:
		require.Error(t, err)
	case <-time.After(rdmatest.Patience / 2):
		t.Error("the dialer is not told")
	}
	assert.Equal(t, 1, there.Stats().Handshakes, "it keeps its place")
	close(g.gate)
	rdmatest.Eventually(t, func() bool { return there.Stats().Handshakes == 0 }, "the place is free")
}
