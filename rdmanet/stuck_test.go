package rdmanet_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestStuckConns: conns whose readers never read do not slow down other conns of the same
// two processes.
func TestStuckConns(t *testing.T) {
	const streams = 4
	turns := rounds(7, 45)
	acrossTo(t, func(t *testing.T, d *rdmanet.Dialer, addr string) {
		rate := func(stuck int) float64 {
			unstick := stick(t, d, addr, stuck)
			defer unstick()
			l := new(load)
			for range streams {
				l.add(t, give(t, d, addr, order{duty: sink}), 64<<10)
			}
			defer l.stop(t)
			time.Sleep(20 * time.Millisecond) // until they have their landing rings
			return l.rate()
		}
		for _, stuck := range []int{1, 8} {
			t.Run(fmt.Sprint(stuck), func(t *testing.T) {
				compare(t, turns, 0.8, func() float64 { return rate(0) }, func() float64 { return rate(stuck) })
			})
		}
	})
}

// compare requires that the rate of with is usually no less than least times that of without.
// Since the machine may have other things to do as well, the two are measured right after each
// other, and if the median is not good enough, there are up to two more rounds to improve it.
// That takes a quiet machine and many turns, and hence -soak. The few turns of the short form
// only tell whether the others stand still.
func compare(t *testing.T, turns int, least float64, without, with func() float64) {
	t.Helper()
	if !*soak {
		least = 0.1
	}
	var ratios []float64
	for range 3 {
		var a, b float64
		for i := range turns {
			if i%2 == 0 {
				a, b = without(), with()
			} else {
				b = with()
				a = without()
			}
			ratios = append(ratios, b/a)
		}
		slices.Sort(ratios)
		t.Logf("%.2fx of the rate alone, %.2fx to %.2fx; at last %.3g MB/s and %.3g", ratios[len(ratios)/2],
			ratios[0], ratios[len(ratios)-1], b/1e6, a/1e6)
		if ratios[len(ratios)/2] >= least {
			return
		}
	}
	assert.GreaterOrEqual(t, ratios[len(ratios)/2], least)
}

// stick opens n conns on which both sides write and neither reads, and returns when they
// are full.
func stick(t *testing.T, d *rdmanet.Dialer, addr string, n int) (unstick func()) {
	t.Helper()
	var writers, full sync.WaitGroup
	var conns []*rdmanet.Conn
	for i := range n {
		c := give(t, d, addr, order{duty: neverRead, key: uint64(i)})
		conns = append(conns, c)
		writers.Go(func() {
			for {
				if _, err := c.Write(noise()); err != nil {
					return
				}
			}
		})
		full.Go(func() { standstill(c, 20*time.Millisecond, nil) })
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
		for piece := noise()[:size]; !l.over.Load(); {
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
