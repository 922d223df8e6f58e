package rdmanet_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestControlConnectionIsClosed: a side that ends an idle peer closes its control connection, whether or not the
// peer does.
func TestControlConnectionIsClosed(t *testing.T) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.Net()})
	hub, there := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
	rdmatest.Cleanly(t, hub)
	rdmatest.Cleanly(t, there)
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: hub})
	between, err := net.Listen("tcp", testenv.Address())
	require.NoError(t, err)
	defer between.Close()
	ended := make(chan error, 1)
	go func() { // passes on what either side says, but not that the dialer has closed the connection
		from, err := between.Accept()
		assert.NoError(t, err)
		to, err := net.Dial("tcp", l.Addr().String())
		assert.NoError(t, err)
		defer to.Close()
		go func() { _, _ = io.Copy(to, from) }()
		_, _ = io.Copy(from, to) // until the listening side has said all
		_ = from.Close()
		for range 100 { // it answers by a reset
			if _, err = to.Write([]byte{0}); err != nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		ended <- err
	}()
	a, err := (&rdmanet.Dialer{Transport: there}).Dial("rdma", between.Addr().String())
	require.NoError(t, err)
	b := rdmatest.Accept(t, l)
	rdmatest.CloseAll(t, a, b)
	rdmatest.Eventually(t, func() bool { return rdmanet.LetGo(l) }, "there is an idle peer")
	require.Error(t, <-ended)
}
