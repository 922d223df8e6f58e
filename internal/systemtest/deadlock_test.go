package systemtest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestWriteFirst: two processes write to each other. This one does not read until
// everything between them is full, and the other one not until it has written everything.
// The first writes fill the landing ring, or the small window.
func TestWriteFirst(t *testing.T) {
	size := rdmatest.Rounds(64<<20, 1<<30)
	rdmatest.AcrossTo(t, func(t *testing.T, d *rdmanet.Dialer, addr string) {
		for _, first := range rdmatest.Pieces[:2] {
			t.Run(fmt.Sprint(first), func(t *testing.T) {
				o := rdmatest.Order{Duty: rdmatest.WriteFirst, Key: uint64(2 * slices.Index(rdmatest.Pieces[:], first)), Size: size}
				c := rdmatest.Give(t, d, addr, o)
				rdmatest.Within(t, 5*time.Minute, []*rdmanet.Conn{c}, func() {
					assert.NoError(t, o.Both(c, o.Key+1, func(written <-chan struct{}) {
						rdmatest.Standstill(c, 300*time.Millisecond, written)
						sent, received := rdmatest.Moved(c)
						t.Logf("stuck with %d bytes sent and %d received", sent, received)
						assert.Less(t, sent, 8<<20, "nothing bounds what the other process leaves unread")
						assert.Less(t, received, 8<<20, "nothing bounds what this one does")
					}))
				})
			})
		}
	})
}

// TestTakeTurns: two processes with one goroutine each write until that blocks, and
// only then read what has arrived, as some event loops do.
func TestTakeTurns(t *testing.T) {
	size := rdmatest.Rounds(64<<20, 1<<30)
	rdmatest.AcrossTo(t, func(t *testing.T, d *rdmanet.Dialer, addr string) {
		o := rdmatest.Order{Duty: rdmatest.TakeTurns, Key: 0, Size: size}
		c := rdmatest.Give(t, d, addr, o)
		rdmatest.Within(t, 5*time.Minute, []*rdmanet.Conn{c}, func() { assert.NoError(t, o.InTurns(c, o.Key+1)) })
	})
}

// TestFullDuplex: 256 conns between two processes are all full of data in both
// directions at the same time.
func TestFullDuplex(t *testing.T) {
	const conns = 256
	size := rdmatest.Rounds(256<<10, 16<<20)
	rdmatest.AcrossTo(t, func(t *testing.T, d *rdmanet.Dialer, addr string) {
		var all []*rdmanet.Conn
		for i := range conns {
			all = append(all, rdmatest.Give(t, d, addr, rdmatest.Order{Duty: rdmatest.Exchange, Key: uint64(2 * i), Size: size}))
		}
		rdmatest.Within(t, 5*time.Minute, all, func() {
			var wg sync.WaitGroup
			for i, c := range all {
				o := rdmatest.Order{Duty: rdmatest.Exchange, Key: uint64(2 * i), Size: size}
				wg.Go(func() { assert.NoError(t, o.CarryOut(c, o.Key+1, 0), "conn %d", i) })
			}
			wg.Wait()
		})
	})
}
