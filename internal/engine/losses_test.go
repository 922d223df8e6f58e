package engine

import (
	"errors"
	"io"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/race"
)

// TestLosses: a fabric silently loses one message in 10,000, while others of the same peer get
// through. Nobody waits for ever for what was lost: the peer is lost within DeadAfter, and the
// conns say why.
func TestLosses(t *testing.T) {
	synced(func(t *testing.T, p simfabric.Personality) {
		b := newBeating(t, p)
		var conns [][2]*Conn
		for range 4 {
			x, y := b.dial(t)
			conns = append(conns, [2]*Conn{x, y})
		}
		b.net.Lose(1 / float64(race.Fewer(10_000)))
		apart := 10 * time.Millisecond / time.Duration(race.Fewer(10))
		var traffic sync.WaitGroup
		resets := make([][2]error, len(conns))
		for i, ends := range conns {
			size := []int{1, 64, 20_000, 300_000}[i]
			for side, c := range ends {
				traffic.Go(func() { resets[i][side] = pingPong(c, size, apart, side == 0) })
			}
		}
		for b.net.Stats().Lost == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		b.net.Lose(0)
		lost := time.Now()
		b.untilLost()
		b.beat() // a control connection tells the other side at once
		traffic.Wait()
		assert.LessOrEqual(t, time.Since(lost), b.dead)
		var errs []error
		for _, p := range []*Peer{b.a, b.b} {
			p.e.mu.Lock()
			errs = append(errs, p.p.err)
			p.e.mu.Unlock()
		}
		for i, ends := range resets {
			for side, err := range ends {
				assert.ErrorIs(t, err, syscall.ECONNRESET)
				assert.Equal(t, errs[side], conns[i][side].Lost(), "it says why")
			}
		}
		assert.True(t, errors.Is(errs[0], ErrMissing) || errors.Is(errs[1], ErrMissing), "%v", errs)
		assert.Equal(t, RoomOpen, b.ea.Room())
		assert.Equal(t, RoomOpen, b.eb.Room())
	})(t)
}

// TestLostHeartbeats: heartbeats and their answers are silently lost. Where that happens to some in
// a row, the peer is lost within DeadAfter of the last of them; where it happens to all from then
// on, within DeadAfter of the first.
func TestLostHeartbeats(t *testing.T) {
	const all, step = 1 << 30, 10 * time.Millisecond
	for _, preset := range simfabric.Presets() {
		t.Run(preset.Name, func(t *testing.T) {
			for i := range race.Fewer(10 * 7) {
				n := []int32{1, 2, 3, 4, 5, 6, all}[i%7]
				dead := []time.Duration{time.Second, 5 * time.Second, DefaultDeadAfter}[i%3]
				synctest.Test(t, func(t *testing.T) {
					p := preset.Personality
					if !p.SameHost { // where all frames are injected
						p.InjectSize = 64
					}
					b := newBeatingEvery(t, p, dead, dead/3)
					time.Sleep(2*dead + time.Duration(i)*dead/100)
					lossy := b.ends[i/7%2]
					lossy.injects.Store(n)
					for n < all && lossy.injects.Load() > 0 && !b.a.lost() && !b.b.lost() {
						time.Sleep(step)
					}
					last := time.Now()
					for !b.a.lost() && !b.b.lost() {
						time.Sleep(step)
						require.LessOrEqual(t, time.Since(last), dead+step, "%d lost, of DeadAfter %v", n, dead)
					}
				})
			}
		})
	}
}

// TestSilenceBetweenHeartbeats: a fabric that brings nothing more is found out within DeadAfter,
// whatever the interval between heartbeats, and wherever between two of them the silence begins.
func TestSilenceBetweenHeartbeats(t *testing.T) {
	const dead, step = DefaultDeadAfter, 10 * time.Millisecond
	for i := range 200 {
		synctest.Test(t, func(t *testing.T) {
			every := dead/3 - time.Duration(i/10)*dead/100
			b := newBeatingEvery(t, simfabric.TCP(), dead, every)
			time.Sleep(4*every + step + every*time.Duration(i%10)/10)
			b.net.Lose(1)
			start := time.Now()
			b.untilLost()
			assert.LessOrEqual(t, time.Since(start), dead, "heartbeats every %v", every)
		})
	}
}

// pingPong sends messages of one size to and fro, that long apart, until there is an error.
func pingPong(c *Conn, size int, apart time.Duration, first bool) error {
	buf := make([]byte, size)
	for ; ; first = true {
		if first {
			time.Sleep(apart)
			if _, err := c.Write(buf); err != nil {
				return err
			}
		}
		if _, err := io.ReadFull(c, buf); err != nil {
			return err
		}
	}
}
