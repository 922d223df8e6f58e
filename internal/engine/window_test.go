package engine

import (
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// fillWith writes size bytes at a time until nothing moves for a second, and returns how many it wrote.
func fillWith(t *testing.T, c *Conn, size int) (sent int) {
	t.Helper()
	b := make([]byte, size)
	for {
		require.NoError(t, c.SetWriteDeadline(time.Now().Add(time.Second)))
		for i := range b {
			b[i] = byte((sent + i) % 251)
		}
		n, err := c.Write(b)
		sent += n
		if err != nil {
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			require.NoError(t, c.SetWriteDeadline(time.Time{}))
			return sent
		}
	}
}

// readAndCheck reads what fillWith has written.
func readAndCheck(t *testing.T, c *Conn, n int) {
	t.Helper()
	checkFrom(t, 0, mustRead(t, c, n))
}

// checkFrom checks what fillWith has written from stream position at on.
func checkFrom(t *testing.T, at int, b []byte) {
	t.Helper()
	for i := range b {
		if want := byte((at + i) % 251); b[i] != want { // the period fits no ring
			require.Equal(t, want, b[i], "byte %d", at+i)
		}
	}
}

// windowOf returns how much small data there is memory for, and how much the peer may send before a read.
func windowOf(c *Conn) (reserved, promised int) {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	s := c.stream
	return s.parts * s.heap.size, int(s.promised - s.smallRead)
}

// assertWindow asserts that a conn's window is of that many bytes, all of which are promised.
func assertWindow(t *testing.T, c *Conn, size int) {
	t.Helper()
	reserved, promised := windowOf(c)
	assert.Equal(t, size, reserved)
	assert.Equal(t, size, promised)
}

// assertFull asserts that n bytes are nearly as many as a window holds: peers are not told of small changes.
func assertFull(t *testing.T, n int) {
	t.Helper()
	assert.LessOrEqual(t, n, DefaultMaxWindow)
	assert.Greater(t, n, DefaultMaxWindow-DefaultWindow/2)
}

// TestWindowGrowsWhileNobodyReads: small writes of any size that nobody reads go on until as much
// is unread as a window grows to. When all is read, the conn has its first window again.
func TestWindowGrowsWhileNobodyReads(t *testing.T) {
	for _, size := range []int{64, 1000, EagerPayload} {
		virtualConn(t, Config{}, func(t *testing.T, l *link, a, b *Conn) {
			size := min(size, a.stream.p.eager)
			for range 2 {
				readAndCheck(t, b, fillWith(t, a, size)) // the peer has more receive slots now
			}
			time.Sleep(3 * choreTime)
			usage := l.eb.core.cfg.Budget.Stats
			before := usage()
			for range 2 {
				sent := fillWith(t, a, size)
				assertFull(t, sent)
				reserved, promised := windowOf(b)
				assert.Equal(t, sent, promised)
				assert.LessOrEqual(t, reserved, DefaultMaxWindow+DefaultWindow)
				assert.LessOrEqual(t, usage().Used, before.Used+int64(reserved-DefaultWindow))
				readAndCheck(t, b, sent)
				assertWindow(t, b, DefaultWindow)
			}
			time.Sleep(3 * choreTime)
			assert.Equal(t, before.Used, usage().Used, "idle")
			assert.Equal(t, before.Mapped, usage().Mapped, "idle")
		})
	}
}

// TestWindowOfAReaderThatStops: a writer goes on until its reader stops for as long as it takes, anywhere in the window.
func TestWindowOfAReaderThatStops(t *testing.T) {
	virtual(t, Config{Window: DefaultWindow, MaxWindow: 4 * DefaultWindow}, func(t *testing.T, l *link) {
		const most = 4 * DefaultWindow
		for n := 1000; n < most; n += 10_000 {
			a, b := l.dial(t)
			sent := fillWith(t, a, 500)
			read, err := io.ReadFull(b, make([]byte, min(n, sent)))
			require.NoError(t, err)
			sent += fillWith(t, a, 500)
			assert.LessOrEqual(t, sent-read, most)
			assert.Greater(t, sent-read, most-DefaultWindow/2, "unread, after %d were read", read)
			resetConns(t, a, b)
		}
	})
}

// TestWindowOfAReaderThatKeepsUp: where the reader keeps up, the window is never larger than at first.
func TestWindowOfAReaderThatKeepsUp(t *testing.T) {
	virtualConn(t, Config{}, func(t *testing.T, _ *link, a, b *Conn) {
		const size = DefaultWindow / 2
		for range 100 {
			for n := 0; n < size; n += 1 << 10 {
				require.NoError(t, writeN(a, 1<<10))
			}
			synctest.Wait()
			assertWindow(t, b, DefaultWindow)
			require.NoError(t, readN(b, size))
		}
	})
}

// TestFixedWindow: a window that was chosen neither grows nor shrinks.
func TestFixedWindow(t *testing.T) {
	for _, size := range []int{MinWindow, 100_000, 1 << 20} {
		virtual(t, Config{Window: size}, func(t *testing.T, l *link) {
			a, b := l.dial(t)
			assert.Equal(t, size, fillWith(t, a, 1000))
			assertWindow(t, b, size)
			resetConns(t, a, b)
		})
	}
}

// TestWindowsOfAHostilePeer: one peer fills the windows of all its conns. They grow until they take an eighth of the
// budget, and conns of another peer get first windows that grow all the same. When others use more than half of the
// budget, no window grows any more, and those that have grown shrink as they are read.
func TestWindowsOfAHostilePeer(t *testing.T) {
	const limit = 64 << 20
	synctest.Test(t, func(t *testing.T) {
		budget := pool.NewBudget(limit)
		s := newBudgetStar(t, simfabric.Config{Seed: 1, Personality: simfabric.TCP()}, Config{Spin: -1, Budget: budget}, 2)
		var bad []*Conn
		var most, sum int
		const conns = 40
		for range conns {
			a, b := s.dial(t, 0)
			bad = append(bad, a, b)
			n := fillWith(t, a, EagerPayload)
			assert.GreaterOrEqual(t, n, DefaultWindow)
			most, sum = max(most, n), sum+n
		}
		assertFull(t, most)
		assert.Greater(t, sum, limit/16)
		taken := func(peer int) int64 {
			s.hub.mu.Lock()
			defer s.hub.mu.Unlock()
			return s.hubs[peer].p.windows
		}
		assert.LessOrEqual(t, taken(0), int64(limit/8+conns*DefaultWindow))

		a, b := s.dial(t, 1)
		sent := fillWith(t, a, 100)
		assertFull(t, sent)
		hogged := limit*5/8 - budget.Stats().Used
		require.NoError(t, budget.Reserve(hogged))
		c, d := s.dial(t, 1)
		assert.Equal(t, DefaultWindow, fillWith(t, c, 100), "a conn while half of the budget is used")
		require.NoError(t, readN(b, sent-2*DefaultWindow))
		assert.Zero(t, fillWith(t, a, 100), "no more is promised")
		reserved, _ := windowOf(b)
		assert.LessOrEqual(t, reserved, 3*DefaultWindow)
		require.NoError(t, readN(b, 2*DefaultWindow))
		assert.Equal(t, DefaultWindow, fillWith(t, a, 100))
		resetConns(t, append(bad, a, b, c, d)...)
		synctest.Wait()
		assert.Zero(t, taken(0)+taken(1))
		budget.Release(hogged)
		s.close(t)
	})
}

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

// TestRingsOfConnsThatGo: of the rings of conns that go, a few are kept, with what was reserved, unless the budget is short.
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
