package rdmanet_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// opened waits until a fabric was asked for so many endpoints.
func (f *opener) opened(t *testing.T, n int32) {
	t.Helper()
	require.Eventually(t, func() bool { return f.opens.Load() >= n }, patience, time.Millisecond)
	assert.Equal(t, n, f.opens.Load())
}

// TestSpares: where each peer has an endpoint of its own, one is ready when a listener's peers
// come, and for the dialing side from its third peer on.
func TestSpares(t *testing.T) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.Shm()})
	hub, client := &opener{Fabric: n}, &opener{Fabric: n}
	here, there := rdmanet.NewTransport(client), rdmanet.NewTransport(hub)
	cleanly(t, there)
	defer func() { assert.NoError(t, here.Close()) }()
	l := listen(t, rdmanet.ListenConfig{Transport: there})
	hub.opened(t, 1)
	client.opened(t, 0)
	d := &rdmanet.Dialer{Transport: here, DisableReuse: true}
	for peers := int32(1); peers <= 4; peers++ {
		c, s := meet(t, d, l)
		hub.opened(t, peers+1) // the next one's
		if peers == 1 {
			time.Sleep(5 * rdmanet.SpareDelay) // for one that must not come: it may stay the only one
			client.opened(t, peers)
		} else {
			client.opened(t, peers+1)
		}
		echo(t, c, s)
		closeAll(t, c, s)
	}
	assert.Empty(t, n.Stats().Misuse)
}

// TestSparesGo: nobody needs a spare, so it is closed when none has come for as long as idle
// peers are kept, and by CloseIdle.
func TestSparesGo(t *testing.T) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.Shm()})
	endpoints := func(want int) {
		t.Helper()
		require.Eventually(t, func() bool { return n.Stats().Endpoints == want }, patience, time.Millisecond)
	}
	short, long := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
	cleanly(t, short)
	defer func() { assert.NoError(t, long.Close()) }()
	short.IdlePeerTimeout = 100 * time.Millisecond
	listen(t, rdmanet.ListenConfig{Transport: short})
	endpoints(1)
	endpoints(0)
	listen(t, rdmanet.ListenConfig{Transport: long})
	endpoints(1)
	long.CloseIdle()
	endpoints(0)
}

// TestNoSpare: a spare takes nobody's place, and not much of what is short.
func TestNoSpare(t *testing.T) {
	for name, limit := range map[string]func(*rdmanet.Transport){
		"peers":  func(tr *rdmanet.Transport) { tr.MaxShmPeers = 1 },
		"memory": func(tr *rdmanet.Transport) { tr.MemoryLimit = 4 << 20 },
	} {
		t.Run(name, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.Shm()})
			hub := &opener{Fabric: n}
			there := rdmanet.NewTransport(hub)
			limit(there)
			cleanly(t, there)
			l := listen(t, rdmanet.ListenConfig{Transport: there})
			defer join(t, n, l)()
			time.Sleep(5 * rdmanet.SpareDelay) // for one that must not come
			hub.opened(t, 1)
		})
	}
}

// TestSpareFailsToOpen: a dial which finds that opens an endpoint itself.
func TestSpareFailsToOpen(t *testing.T) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.Shm()})
	var broken atomic.Bool
	hub := &opener{Fabric: n, before: func(int32) error {
		if broken.CompareAndSwap(true, false) {
			return errors.New("not now")
		}
		return nil
	}}
	broken.Store(true)
	there := rdmanet.NewTransport(hub)
	cleanly(t, there)
	l := listen(t, rdmanet.ListenConfig{Transport: there})
	hub.opened(t, 1)
	defer join(t, n, l)()
	hub.opened(t, 2)
}
