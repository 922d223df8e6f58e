package rdmanet_test

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func find(t *testing.T, tr *rdmanet.Transport, c *rdmanet.Conn) rdmanet.ConnState {
	t.Helper()
	for _, s := range tr.Conns() {
		if s.ID == c.Info().ID {
			return s
		}
	}
	require.Fail(t, "the conn is not listed")
	return rdmanet.ConnState{}
}

func TestConns(t *testing.T) {
	onEach(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		assert.Empty(t, tr.Conns())
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: providers})
		before := time.Now()
		d := &rdmanet.Dialer{Transport: tr, Providers: providers}
		c, s := rdmatest.Meet(t, d, l)
		other, err := d.Dial("rdma", l.Addr().String()) // its other end waits for Accept
		require.NoError(t, err)
		assert.Equal(t, 1, tr.Stats().Backlog)

		list := tr.Conns()
		require.Len(t, list, 4)
		assert.IsIncreasing(t, []uint64{list[0].ID, list[1].ID, list[2].ID, list[3].ID})
		here, there := find(t, tr, c), find(t, tr, s)
		assert.Equal(t, c.Info(), here.ConnInfo)
		assert.Equal(t, c.LocalAddr(), here.Local)
		assert.Equal(t, c.RemoteAddr(), here.Remote)
		assert.True(t, here.Dialed)
		assert.False(t, there.Dialed)
		assert.WithinRange(t, here.Opened, before, time.Now())
		assert.Equal(t, rdmanet.PhaseOpen, here.Phase)

		_, err = c.Write([]byte("hello"))
		require.NoError(t, err)
		rdmatest.Eventually(t, func() bool { return find(t, tr, s).Unread == 5 }, "it has arrived")
		assert.EqualValues(t, 5, find(t, tr, c).SmallSent)

		written := make(chan error, 1)
		go func() { _, err := c.Write(make([]byte, 32<<20)); written <- err }()
		rdmatest.Eventually(t, func() bool { return find(t, tr, c).WaitsFor != "" }, "the writer waits")
		require.NoError(t, c.SetWriteDeadline(time.Now()))
		require.Error(t, <-written)
		rdmatest.Eventually(t, func() bool { return find(t, tr, c).WaitsFor == "" }, "nobody waits any more")

		read := make(chan error, 1)
		go func() { _, err := other.Read(make([]byte, 1)); read <- err }()
		rdmatest.Eventually(t, func() bool { return find(t, tr, other.(*rdmanet.Conn)).Reading }, "the reader waits")
		require.NoError(t, other.SetReadDeadline(time.Now()))
		require.Error(t, <-read)

		require.NoError(t, c.CloseWrite())
		rdmatest.Eventually(t, func() bool { return find(t, tr, c).Phase == rdmanet.PhaseWriteClosed }, "one direction")
		require.NoError(t, s.SetLinger(0))
		require.NoError(t, s.Close())
		rdmatest.Eventually(t, func() bool { return find(t, tr, c).Phase == rdmanet.PhaseReset }, "reset by the peer")
		rdmatest.CloseAll(t, c, other, rdmatest.Accept(t, l))
		assert.Empty(t, tr.Conns())
	})
}

// TestConnsOverTCP: conns over plain TCP are the program's. They are counted once, not listed, and
// outlive the Transport.
func TestConnsOverTCP(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, AcceptTCP: true})
	nc, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	_, err = nc.Write([]byte("plain"))
	require.NoError(t, err)
	s := rdmatest.AcceptPlain(t, l)
	d := rdmanet.Dialer{Transport: tr, Fallback: rdmanet.FallbackTCP, Timeout: rdmatest.Patience}
	c, err := d.Dial("rdma", plainServer(t, "220 mail.example\r\n"))
	require.NoError(t, err)
	assert.Empty(t, tr.Conns())
	assert.EqualValues(t, 2, tr.Stats().TCPConns)
	assert.Zero(t, tr.Stats().Conns)
	require.NoError(t, tr.Close())
	_, err = io.ReadFull(s, make([]byte, len("plain")))
	require.NoError(t, err)
	rdmatest.Echo(t, nc, s)
	_, err = io.ReadFull(c, make([]byte, len("220 ")))
	require.NoError(t, err)
	rdmatest.CloseAll(t, s, nc, c)
	assert.EqualValues(t, 2, tr.Stats().TCPConns)
}

// TestConnsWhileTheyComeAndGo: conns may be listed at any time. In the end none is left in
// the list, neither those that were refused nor those that were aborted.
func TestConnsWhileTheyComeAndGo(t *testing.T) {
	for _, p := range []simfabric.Personality{simfabric.Shm(), simfabric.TCP()} {
		t.Run(p.Provider, func(t *testing.T) {
			tr := simulated(t, p)
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Backlog: 2})
			d := &rdmanet.Dialer{Transport: tr}
			done := make(chan struct{})
			var watching sync.WaitGroup
			watching.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
						for _, s := range tr.Conns() {
							assert.NotEmpty(t, s.Phase)
						}
					}
				}
			})
			for range 30 {
				var wg sync.WaitGroup
				for range 4 { // two of which are refused
					wg.Go(func() {
						if c, err := d.Dial("rdma", l.Addr().String()); err == nil {
							_, _ = c.Write([]byte("hello"))
							_ = c.(*rdmanet.Conn).SetLinger(0)
							_ = c.Close()
						}
					})
				}
				wg.Wait()
				for tr.Stats().Backlog > 0 {
					rdmatest.CloseAll(t, rdmatest.Accept(t, l))
				}
			}
			close(done)
			watching.Wait()
			assert.Positive(t, tr.Stats().Refused)
			rdmatest.Eventually(t, func() bool { return len(tr.Conns()) == 0 && tr.Stats().Conns == 0 }, "none is left")
			assert.LessOrEqual(t, tr.Stats().Opened, uint64(2*4*30))
		})
	}
}
