package engine

import (
	"context"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// taken reports that something is mapped at the address of mem.
func taken(t *testing.T, mem []byte) bool {
	t.Helper()
	at, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)),
		unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_FIXED_NOREPLACE)
	if err == nil {
		require.NoError(t, unix.MunmapPtr(at, uintptr(len(mem))))
	}
	return err != nil
}

// TestDeadLandingMemory: memory that a peer could write to when it was given up can be read for as
// long as the user likes. Then its pages are given back, and its addresses stay taken.
func TestDeadLandingMemory(t *testing.T) {
	for _, name := range []string{"tcp", "verbs", "net"} {
		t.Run(name, func(t *testing.T) {
			l := newLink(t, personalities()[name], Config{Ring: 2 << 20, first: 2 << 20}) // as large as the memory behind retired slabs
			a, b := l.dial(t)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			written := begin(func() (err error) {
				for ctx.Err() == nil && err == nil {
					_, err = a.Write(pattern[:1<<20])
				}
				return err
			})
			var held *Buffer // in the landing ring
			for held == nil || held.stream == nil {
				if held != nil {
					held.Release()
				}
				var err error
				held, err = b.RecvBuffer()
				require.NoError(t, err)
			}
			e := l.eb
			used := func() int64 { return e.core.cfg.Budget.Stats().Used }
			pos := held.Bytes()[0]
			l.net.Kill(l.ea.fab, simfabric.DeathError)
			l.b.Lost(unix.ECONNRESET)
			l.a.Lost(unix.ECONNRESET)
			locked(e, func() { require.Len(t, e.core.quarantine.unread, 1) })
			giveUp(b)
			look := func() { // as the timer does
				locked(e, e.core.chores)
				locked(e, func() {
					for e.awaitSupply() { // receive slots for a peer that was busy may still come
					}
				})
			}
			for range 3 {
				look()
			}
			mem := held.Bytes()
			require.Equal(t, pos, mem[0], "the user has it")
			before := used()
			held.Release()
			look()
			assert.True(t, taken(t, mem))
			assert.LessOrEqual(t, used(), before)
			locked(e, func() {
				assert.Empty(t, e.core.quarantine.unread)
				assert.Len(t, e.core.quarantine.kept, 1)
			})
			mem[0] = 1 // as a late write does, to no effect
			_ = a.Close()
			assert.Error(t, <-written)
			l.close(t)
		})
	}
}
