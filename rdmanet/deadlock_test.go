package rdmanet_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestWriteFirst: two processes write to each other. This one does not read until
// everything between them is full, and the other one not until it has written everything.
// The first writes fill the landing ring, or the small window.
func TestWriteFirst(t *testing.T) {
	size := rounds(64<<20, 1<<30)
	acrossTo(t, func(t *testing.T, d *rdmanet.Dialer, addr string) {
		for _, first := range pieces[:2] {
			t.Run(fmt.Sprint(first), func(t *testing.T) {
				o := order{writeFirst, uint64(2 * slices.Index(pieces[:], first)), size}
				c := give(t, d, addr, o)
				within(t, 5*time.Minute, []*rdmanet.Conn{c}, func() {
					assert.NoError(t, o.both(c, o.key+1, func(written <-chan struct{}) {
						standstill(c, 300*time.Millisecond, written)
						sent, received := moved(c)
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
	size := rounds(64<<20, 1<<30)
	acrossTo(t, func(t *testing.T, d *rdmanet.Dialer, addr string) {
		o := order{takeTurns, 0, size}
		c := give(t, d, addr, o)
		within(t, 5*time.Minute, []*rdmanet.Conn{c}, func() { assert.NoError(t, o.inTurns(c, o.key+1)) })
	})
}

// TestFullDuplex: 256 conns between two processes are all full of data in both
// directions at the same time.
func TestFullDuplex(t *testing.T) {
	const conns = 256
	size := rounds(256<<10, 16<<20)
	acrossTo(t, func(t *testing.T, d *rdmanet.Dialer, addr string) {
		var all []*rdmanet.Conn
		for i := range conns {
			all = append(all, give(t, d, addr, order{exchange, uint64(2 * i), size}))
		}
		within(t, 5*time.Minute, all, func() {
			var wg sync.WaitGroup
			for i, c := range all {
				o := order{exchange, uint64(2 * i), size}
				wg.Go(func() { assert.NoError(t, o.carryOut(c, o.key+1, 0), "conn %d", i) })
			}
			wg.Wait()
		})
	})
}
