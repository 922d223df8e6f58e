package engine

import (
	"bytes"
	"crypto/rand"
	"io"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// TestBuffersGoByWrite: a conn that only ever sends Buffers has no staging memory and needs none. Everything goes by
// RDMA except what is sent before the lease arrives, and pieces that are too short.
func TestBuffersGoByWrite(t *testing.T) {
	onEachWithRings(t, func(t *testing.T, l *link, a, b *Conn) {
		const size, count = 300 << 10, 40
		data := make([]byte, size)
		rand.Read(data)
		thrice := slices.Repeat(data, 3) // a Buffer may be longer than data
		var buffers, first int           // sent in all, and before the lease came
		var small uint64                 // bytes sent in frames until then
		sent := begin(func() error {
			for ; first == 0 || buffers < first+count; buffers++ {
				if first == 0 && a.Seen().LargeOut > 0 {
					first, small = buffers, a.Seen().SmallOut
				}
				if err := allocAndSend(a, data); err != nil {
					return err
				}
			}
			return a.CloseWrite()
		})
		got := 0
		for {
			buf, err := b.RecvBuffer()
			if err == io.EOF {
				break
			}
			require.NoError(t, err)
			require.True(t, bytes.HasPrefix(thrice[got%size:], buf.Bytes()), "after byte %d", got)
			got += len(buf.Bytes())
			buf.Release()
		}
		require.NoError(t, <-sent)
		require.Equal(t, size*buffers, got)
		assert.LessOrEqual(t, a.Seen().SmallOut-small, uint64(DefaultWindow+count*EagerPayload))
		closeConns(t, a, b)
		require.Eventually(t, func() bool { return lent(l.ea) == 0 }, 5*time.Second, time.Millisecond)
	})
}

// allocAndSend sends data as a Buffer.
func allocAndSend(c *Conn, data []byte) error {
	buf, err := c.AllocBuffer(len(data))
	if err != nil {
		return err
	}
	copy(buf.Bytes(), data)
	return sendBuffer(c, buf)
}

// TestBuffersOutliveTheEndpoint: Buffers that are held keep their memory, and nothing else, when
// the endpoint closes: registrations would keep the fabric's domain open for good.
func TestBuffersOutliveTheEndpoint(t *testing.T) {
	for name, sim := range personalities() {
		if name == "no large data" || name == "small messages" || sim.TxDepth == 1 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLink(t, sim, Config{})
			a, b := l.dial(t)
			data := make([]byte, 400<<10)
			rand.Read(data)
			thrice := slices.Concat(data, data, data) // a Buffer may be longer than data
			go func() {                               // until the endpoint closes: the first bytes go in frames
				for err := error(nil); err == nil; {
					_, err = a.Write(data)
				}
			}()
			held, want := []*Buffer{}, [][]byte{}
			for got := 0; b.Seen().LargeIn == 0; {
				buf, err := b.RecvBuffer()
				require.NoError(t, err)
				held, want = append(held, buf), append(want, thrice[got%len(data):][:len(buf.Bytes())])
				got += len(buf.Bytes())
			}
			for _, size := range []int{stepSize, 2 * stepSize, 2 * lendSlab} {
				buf, err := a.AllocBuffer(size)
				require.NoError(t, err)
				want = append(want, bytes.Repeat([]byte{1}, size))
				copy(buf.Bytes(), want[len(held)])
				held = append(held, buf)
			}
			l.end(t)
			require.Zero(t, l.net.Stats().Regions)
			for i, buf := range held {
				require.True(t, bytes.Equal(want[i], buf.Bytes()), "buffer %d", i)
				buf.Release()
			}
			_ = a.Close()
			_ = b.Close()
			require.Zero(t, l.ea.core.cfg.Budget.Stats().Used+l.eb.core.cfg.Budget.Stats().Used)
		})
	}
}

// lent returns how many Buffers of the endpoint are held or in flight.
func lent(e *Endpoint) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.core.lent
}

// TestCloseBeforeRelease: an endpoint that is closed while the user holds Buffers in registered
// memory is closed for good, with its fabric endpoint, once they are released.
func TestCloseBeforeRelease(t *testing.T) {
	onEach(t, func(t *testing.T, l *link, a, b *Conn) {
		chunk, err := a.AllocBuffer(100)
		require.NoError(t, err)
		block, err := a.AllocBuffer(2 * stepSize)
		require.NoError(t, err)
		require.NoError(t, l.ea.Close())
		require.ErrorIs(t, sendBuffer(a, chunk), syscall.ECONNRESET)
		block.Bytes()[0] = 1
		block.Release()
		require.ErrorIs(t, l.ea.fab.Close(), simfabric.ErrClosed, "it was not closed")
		require.NoError(t, a.Close())
		resetConns(t, b)
	})
}

// TestSendBufferWaitsForRing: where the ring has room for a staging chunk, but not for the write that
// SendBuffer would make of the rest of its Buffer, SendBuffer waits for the ring. It must not be woken
// again and again for what it does not take.
func TestSendBufferWaitsForRing(t *testing.T) {
	const size = 220 << 10 // of which some number leaves such room
	l, a, b := newConns(t, simfabric.Config{Seed: 1, Personality: simfabric.TCP()}, Config{})
	sent := begin(func() (err error) {
		for err == nil {
			err = allocAndSend(a, make([]byte, size))
		}
		return err
	})
	found := false
	for range 100 { // each time, the ring is filled as far as SendBuffer likes
		require.Eventually(t, func() (waits bool) {
			locked(l.ea, func() {
				s := a.stream
				if waits = s.wr.waiting && s.outLease != nil && s.lacks(a.left) == WaitsRing; waits {
					found = found || s.outLease.Size-(s.largeOut-s.largeMax) >= stepSize
				}
			})
			return waits
		}, 5*time.Second, time.Millisecond, "it waits for something else")
		mustRead(t, b, 3*size)
	}
	assert.True(t, found, "there was never such room")
	resetConns(t, a, b)
	assert.Error(t, <-sent)
}
