package rdmanet_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// begins reports whether o sends the first frame of a path check, or of a conn.
func begins(o fabric.Op) bool {
	return (o.Kind == fabric.Send || o.Kind == fabric.Inject) && framing.Type(o.Buf[0]) == framing.TypeOpen
}

// TestGreedyHost: a host that begins many path checks, and completes none, does not keep
// another host out for long, since a free place goes to the host that has the fewest.
func TestGreedyHost(t *testing.T) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.TCP()})
	here, there, bad := rdmanet.NewTransport(n), rdmanet.NewTransport(n), rdmanet.NewTransport(muteFabric{n, begins})
	rdmatest.Cleanly(t, there)
	defer here.Close()
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
	d := &rdmanet.Dialer{Transport: here, DisableReuse: true, Timeout: rdmatest.Patience}
	c, s := rdmatest.Meet(t, d, l)
	rdmatest.CloseAll(t, c, s)
	ctx, cancel := context.WithCancel(t.Context())
	bad.FailureMemory = -1
	var wg sync.WaitGroup
	for range 64 { // connections of one host
		wg.Go(func() {
			for ctx.Err() == nil {
				d := &rdmanet.Dialer{Transport: bad, DisableReuse: true, Timeout: 20 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, 0, 1)}}
				if c, err := d.DialContext(ctx, "rdma", l.Addr().String()); err == nil {
					c.Close()
				}
			}
		})
	}
	time.Sleep(time.Second)
	for range 4 {
		start := time.Now()
		c, err := d.Dial("rdma", l.Addr().String())
		took := time.Since(start)
		t.Logf("dial: %v %v", took, err)
		if assert.NoError(t, err) {
			rdmatest.CloseAll(t, c, rdmatest.Accept(t, l))
		}
		assert.Less(t, took, 1500*time.Millisecond)
	}
	cancel()
	wg.Wait()
	bad.Close()
}
