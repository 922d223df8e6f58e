package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/pool"
)

// TestIdleConnsOwnNoReassemblyMemory: there is memory for unread data only while there is some. It is paid for by the
// conns' windows, and goes when the data is read or the conns go, whatever the size of the windows.
func TestIdleConnsOwnNoReassemblyMemory(t *testing.T) {
	for _, window := range []int{MinWindow + 100, DefaultWindow, 4 * DefaultWindow} {
		virtual(t, Config{Window: window, PeerSlots: framing.MinSlots}, func(t *testing.T, l *link) {
			const conns = 12
			idle := func() { time.Sleep(3 * choreTime) }
			idle() // the path check has ended only just now
			usage := l.eb.core.cfg.Budget.Stats
			before, bytes := usage(), conns*int64(pool.Pages(window))
			is := func(mapped, used int64, when string) {
				t.Helper()
				assert.Equal(t, before.Mapped+mapped, usage().Mapped, when)
				assert.Equal(t, before.Used+used, usage().Used, when)
			}
			var ends [conns][2]*Conn
			size := min(MinWindow, l.ea.core.eager-framing.HeaderSize) // no more than a frame takes
			for i := range ends {
				ends[i][0], ends[i][1] = l.dial(t)
			}
			fill := func() {
				for _, c := range ends {
					require.NoError(t, writeN(c[0], size))
				}
				for _, c := range ends {
					for c[1].e.States([]*Conn{c[1]})[0].Unread < uint64(size) {
						time.Sleep(time.Millisecond)
					}
				}
				is(bytes, bytes, "it has come")
			}
			is(0, bytes, "nothing has been sent")
			for range 2 {
				fill()
				idle()
				is(bytes, bytes, "it is not read yet")
				for _, c := range ends {
					require.NoError(t, readN(c[1], size))
				}
				idle()
				is(0, bytes, "it is read, and windows are promised")
			}
			fill()
			for _, c := range ends {
				resetConns(t, c[1])
				closeConns(t, c[0])
			}
			idle()
			is(0, 0, "conns are closed")
		})
	}
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
