package systemtest

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestStuckConns: conns whose readers never read do not slow down other conns of the same
// two processes.
func TestStuckConns(t *testing.T) {
	const streams = 4
	turns := rdmatest.Rounds(7, 45)
	rdmatest.AcrossTo(t, func(t *testing.T, d *rdmanet.Dialer, addr string) {
		rate := func(stuck int) float64 {
			unstick := stick(t, d, addr, stuck)
			defer unstick()
			l := new(load)
			for range streams {
				l.add(t, rdmatest.Give(t, d, addr, rdmatest.Order{Duty: rdmatest.Sink}), 64<<10)
			}
			defer l.stop(t)
			rdmatest.Eventually(t, func() bool {
				return !slices.ContainsFunc(l.conns, func(c *rdmanet.Conn) bool { return c.Info().LargeSent == 0 })
			}, "each has its landing ring")
			return l.rate()
		}
		for _, stuck := range []int{1, 8} {
			t.Run(fmt.Sprint(stuck), func(t *testing.T) {
				rdmatest.Compare(t, turns, 0.8, func() float64 { return rate(0) }, func() float64 { return rate(stuck) })
			})
		}
	})
}

// stick opens n conns on which both sides write and neither reads, and returns when they
// are full.
func stick(t *testing.T, d *rdmanet.Dialer, addr string, n int) (unstick func()) {
	t.Helper()
	var writers, full sync.WaitGroup
	var conns []*rdmanet.Conn
	for i := range n {
		c := rdmatest.Give(t, d, addr, rdmatest.Order{Duty: rdmatest.NeverRead, Key: uint64(i)})
		conns = append(conns, c)
		writers.Go(func() {
			for {
				if _, err := c.Write(rdmatest.Noise()); err != nil {
					return
				}
			}
		})
		full.Go(func() { rdmatest.Standstill(c, 20*time.Millisecond, nil) })
	}
	full.Wait()
	return func() {
		for _, c := range conns {
			assert.NoError(t, c.SetLinger(0))
			assert.NoError(t, c.Close())
		}
		writers.Wait()
	}
}

// load is a number of conns that write as much as they can.
type load struct {
	conns   []*rdmanet.Conn
	written atomic.Int64
	over    atomic.Bool
	writers sync.WaitGroup
}

// add makes c write pieces of size bytes.
func (l *load) add(t *testing.T, c *rdmanet.Conn, size int) {
	l.conns = append(l.conns, c)
	l.writers.Go(func() {
		for piece := rdmatest.Noise()[:size]; !l.over.Load(); {
			n, err := c.Write(piece)
			l.written.Add(int64(n))
			if !assert.NoError(t, err) {
				return
			}
		}
	})
}

// rate returns how much they write, in bytes a second.
func (l *load) rate() float64 {
	before, start := l.written.Load(), time.Now()
	time.Sleep(100 * time.Millisecond)
	return float64(l.written.Load()-before) / time.Since(start).Seconds()
}

func (l *load) stop(t *testing.T) {
	t.Helper()
	l.over.Store(true)
	l.writers.Wait()
	for _, c := range l.conns {
		require.NoError(t, c.Close())
	}
}
