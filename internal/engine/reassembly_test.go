package engine

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/pool"
)

// TestIdleConnsOwnNoReassemblyMemory: there is memory for unread data only while there is some. It
// is paid for by the conns' windows, and goes when the data is read or the conns go, whatever the
// size of the windows.
func TestIdleConnsOwnNoReassemblyMemory(t *testing.T) {
	for _, window := range []int{MinWindow + 100, DefaultWindow, 4 * DefaultWindow} {
		virtual(t, Config{Window: window, PeerSlots: framing.MinSlots}, func(t *testing.T, l *link) {
			const conns = 12
			mapped := func() int64 { return l.eb.core.cfg.Budget.Stats().Mapped }
			used := func() int64 { return l.eb.core.cfg.Budget.Stats().Used }
			idle := func() { time.Sleep(3 * choreTime) }
			idle() // the path check has ended only just now
			before, usedBefore := mapped(), used()
			bytes := int64(pool.Pages(window))
			var ends [conns][2]*Conn
			data := make([]byte, min(MinWindow, l.ea.core.eager-framing.HeaderSize)) // no more than a frame takes
			for i := range ends {
				ends[i][0], ends[i][1] = l.dial(t)
			}
			fill := func() {
				for _, c := range ends {
					_, err := c[0].Write(data)
					require.NoError(t, err)
				}
				for _, c := range ends {
					for l.unread(c[1]) < uint64(len(data)) {
						time.Sleep(time.Millisecond)
					}
				}
				assert.Equal(t, before+conns*bytes, mapped())
				assert.Equal(t, usedBefore+conns*bytes, used())
			}
			assert.Equal(t, before, mapped())
			for range 2 {
				fill()
				idle()
				assert.Equal(t, before+conns*bytes, mapped(), "it is not read yet")
				for _, c := range ends {
					_, err := io.ReadFull(c[1], data)
					require.NoError(t, err)
				}
				idle()
				assert.Equal(t, before, mapped(), "it is read")
				assert.Equal(t, usedBefore+conns*bytes, used(), "windows are promised")
			}
			fill()
			for _, c := range ends {
				resetConns(t, c[1])
				require.NoError(t, c[0].Close())
			}
			idle()
			assert.Equal(t, before, mapped(), "conns are closed")
			assert.Equal(t, usedBefore, used())
		})
	}
}

func (l *link) unread(c *Conn) uint64 {
	l.eb.mu.Lock()
	defer l.eb.mu.Unlock()
	return c.stream.state().Unread
}

// TestRingsOfConnsThatGo: when conns go, a few of their rings are kept for the next conns, with
// what was reserved for them, unless the budget is short.
func TestRingsOfConnsThatGo(t *testing.T) {
	c, _ := lonelyCore(t)
	b := c.cfg.Budget
	before := b.Stats()
	const size = 600_000
	h := c.heap(size)
	spareRings := h.spareRings()
	joined := func(n int) (rings []*ring) {
		for range n {
			require.NoError(t, h.join(b))
			r, err := h.get(b)
			require.NoError(t, err)
			rings = append(rings, r)
		}
		return rings
	}
	part := func(rings []*ring) {
		for _, r := range rings {
			h.put(r)
			c.leave(h)
			s := b.Stats()
			assert.LessOrEqual(t, s.Mapped-before.Mapped, s.Used-before.Used)
		}
	}
	part(joined(2 * spareRings))
	assert.Equal(t, heap{size: size, free: h.free, low: h.low, mapped: spareRings, paid: spareRings}, *h)
	last := joined(1)
	assert.Equal(t, spareRings, h.paid, "it takes over what is reserved")
	c.trimRings()
	c.trimRings()
	assert.Equal(t, 1, h.mapped)
	assert.Equal(t, 1, h.paid)
	hogged := b.Stats().Limit - b.Stats().Used
	require.NoError(t, b.Reserve(hogged))
	require.Error(t, h.join(b))
	part(last)
	assert.Equal(t, heap{size: size, free: h.free}, *h)
	assert.Empty(t, h.free)
	b.Release(hogged)
}
