package engine

import (
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// TestWholeRing: a writer that could use the whole ring goes on even if the reader has not told it of the last few
// bytes that it read. It does not have to wait until the ring has been idle for so long that it is taken back.
func TestWholeRing(t *testing.T) {
	const size, writes = 64 << 10, 20
	virtualConn(t, Config{Ring: size}, func(t *testing.T, _ *link, a, b *Conn) {
		warmUp(t, a, b)
		start := time.Now()
		go func() {
			for range writes {
				assert.NoError(t, writeN(a, size))
			}
			assert.NoError(t, a.CloseWrite())
		}()
		n, err := io.CopyBuffer(onlyWriter{io.Discard}, onlyReader{b}, make([]byte, 10_000))
		require.NoError(t, err)
		require.EqualValues(t, size*writes, n)
		require.Positive(t, b.Seen().LargeIn)
		assert.Less(t, time.Since(start), choreTime)
	})
}

// TestRingIsTold: the writer is told of each half of its ring that was read, of a quarter only if nothing else is left.
func TestRingIsTold(t *testing.T) {
	const size, quarter = 1 << 20, 256 << 10
	virtualConn(t, Config{Ring: size, first: size}, func(t *testing.T, l *link, a, b *Conn) {
		warmUp(t, a, b)
		require.NoError(t, writeN(a, 3*quarter))
		var told [4]uint64
		for i := range told {
			if i > 0 {
				require.NoError(t, readN(b, quarter))
			}
			time.Sleep(10 * time.Millisecond)
			locked(l.ea, func() { told[i] = a.stream.largeMax })
		}
		assert.Equal(t, told[0], told[1], "one quarter of three")
		assert.GreaterOrEqual(t, told[2], told[1]+2*quarter)
		assert.Equal(t, a.Seen().LargeOut, told[3], "all")
	})
}

// TestRingTakesWhatTheWindowDoesNot: while nobody reads, the end of a large write, and
// small ones after it, do not wait for the window as long as the ring has room.
func TestRingTakesWhatTheWindowDoesNot(t *testing.T) {
	virtualConn(t, Config{Window: DefaultWindow}, func(t *testing.T, _ *link, a, b *Conn) {
		require.NoError(t, a.SetWriteDeadline(time.Now().Add(time.Minute)))
		sent := 0
		frame := a.stream.p.eager
		for _, size := range slices.Concat(slices.Repeat([]int{frame}, DefaultWindow/frame), []int{DefaultWindow % frame, stepSize + 100, 100, frame}) {
			n, err := a.Write(make([]byte, size))
			require.NoError(t, err, "%d of %d bytes after %d", n, size, sent)
			sent += n
		}
		require.EqualValues(t, DefaultWindow, a.Seen().SmallOut)
		require.NoError(t, a.CloseWrite())
		got, err := io.ReadAll(onlyReader{b})
		require.NoError(t, err)
		require.Len(t, got, sent)
	})
}

// TestHeldBuffers: a user that waits for the rest of a message while it holds what came before gets
// the rest, as long as all of it fits the ring, whatever the writer had been told before.
func TestHeldBuffers(t *testing.T) {
	for before := 512 << 10; before <= 1<<20; before += 64<<10 - 1000 {
		virtual(t, Config{Ring: 1 << 20}, func(t *testing.T, l *link) {
			const size = 900 << 10
			a, b := l.dial(t)
			go func() {
				assert.NoError(t, writeN(a, before)) // gets the lease
				for range size / (60 << 10) {
					assert.NoError(t, writeN(a, 60<<10))
				}
			}()
			require.NoError(t, readN(b, before))
			end(t, hold(t, b, size), b, a)
		})
	}
}

// TestNothingAfterReset: a write that landed before a Reset but is noticed after it adds nothing to what can be read.
func TestNothingAfterReset(t *testing.T) {
	l, a, b := newConns(t, simfabric.Config{Seed: 1, Personality: simfabric.RuleCQData()}, Config{Window: DefaultWindow})
	buf := make([]byte, 200<<10)
	sent := begin(func() error { return writeN(a, len(buf)) })
	_, err := io.ReadFull(b, buf[:100<<10]) // the rest stays in the ring
	require.NoError(t, err)
	require.NoError(t, <-sent)
	s := b.stream
	require.Eventually(t, func() bool {
		l.eb.mu.Lock()
		defer l.eb.mu.Unlock()
		return s.rcvNxt == uint64(len(buf))
	}, 5*time.Second, time.Millisecond)
	l.eb.enter()
	in := s.inLease
	in.writes[in.seq%framing.MaxWrites] = landing{announced: true, pos: s.rcvNxt, ring: s.largeIn, n: 10}
	s.wasReset(framing.ResetAbort)
	require.NotNil(t, s.inLease)
	s.p.advertised++ // the slot that the completion takes
	s.p.granted++
	data := uint64(framing.MakeImmediate(in.Index, in.seq, false))
	if s.p.rule == byCQData {
		data = framing.MakeImmediate(in.Index, in.seq, false).Proven(s.p.proofIn)
	}
	l.eb.core.landed(data)
	assert.EqualValues(t, len(buf), s.rcvNxt)
	l.eb.leave()
	n, err := io.ReadFull(b, buf)
	assert.ErrorIs(t, err, syscall.ECONNRESET)
	assert.Equal(t, 100<<10, n)
	resetConns(t, a, b)
}

// flood has a write to b without a pause, until stop.
func flood(t *testing.T, a, b *Conn) (stop func()) {
	var wg sync.WaitGroup
	var over atomic.Bool
	wg.Go(func() {
		for !over.Load() && assert.NoError(t, writeN(a, 128<<10)) {
		}
		assert.NoError(t, a.Close())
	})
	wg.Go(func() {
		_, err := io.Copy(io.Discard, b)
		assert.NoError(t, err)
		assert.NoError(t, b.Close())
	})
	return func() {
		over.Store(true)
		wg.Wait()
	}
}

// hasRing waits until large data comes to a conn by way of a ring.
func hasRing(t *testing.T, c *Conn, what string) {
	t.Helper()
	before := c.Seen().LargeIn
	require.Eventually(t, func() bool { return c.Seen().LargeIn > before }, 20*time.Second, 10*time.Millisecond, what)
}

// TestRingsForAll: where all memory is in rings that are used without a pause, another conn still
// gets one, on the same endpoint or on another that shares the budget.
func TestRingsForAll(t *testing.T) {
	for _, name := range []string{"a peer more", "an endpoint more"} {
		t.Run(name, func(t *testing.T) {
			const busy = 4
			budget := pool.NewBudget(64 << 20)
			sim := simfabric.Config{Seed: 1, Personality: simfabric.TCP()}
			s := newBudgetStar(t, sim, Config{Budget: budget}, busy+1)
			other, last := s, busy
			if name == "an endpoint more" {
				other, last = newBudgetStar(t, sim, Config{Budget: budget}, 1), 0
			}
			a, b := other.dial(t, last)
			var stops []func()
			for i := range busy {
				c, d := s.dial(t, i)
				stops = append(stops, flood(t, c, d))
				hasRing(t, d, "one of those that are busy")
			}
			hogged := budget.Stats().Limit*7/8 - budget.Stats().Used
			require.NoError(t, budget.Reserve(hogged))
			stops = append(stops, flood(t, a, b))
			hasRing(t, b, "the conn that came last")
			for _, stop := range stops {
				stop()
			}
			budget.Release(hogged)
			// The budget is empty only once both are closed.
			for _, x := range []*star{s, other} {
				for _, e := range append(x.spokes, x.hub) {
					require.NoError(t, e.Close())
				}
			}
			assert.Zero(t, budget.Stats().Used)
		})
	}
}
