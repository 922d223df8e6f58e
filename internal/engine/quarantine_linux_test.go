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
			sent := make([]byte, 1<<20)
			for i := range sent {
				sent[i] = byte(i % 251)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			written := make(chan struct{})
			go func() {
				defer close(written)
				for ctx.Err() == nil {
					if _, err := a.Write(sent); err != nil {
						return
					}
				}
			}()
			var held *Buffer // in the landing ring
			for held == nil {
				got, err := b.RecvBuffer()
				require.NoError(t, err)
				if got.stream == nil {
					got.Release()
					continue
				}
				held = got
			}
			e := l.eb
			used := func() int64 { return e.core.cfg.Budget.Stats().Used }
			pos := held.Bytes()[0]
			l.net.Kill(l.ea.fab, simfabric.DeathError)
			l.b.Lost(unix.ECONNRESET)
			l.a.Lost(unix.ECONNRESET)
			e.mu.Lock()
			require.Len(t, e.core.quarantine.unread, 1)
			e.mu.Unlock()
			require.NoError(t, b.SetLinger(0))
			_ = b.Close()
			look := func() { // as the timer does
				e.enter()
				e.core.chores()
				e.leave()
				e.enter()
				for e.awaitSupply() { // receive slots for a peer that was busy may still come
				}
				e.leave()
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
			e.mu.Lock()
			assert.Empty(t, e.core.quarantine.unread)
			assert.Len(t, e.core.quarantine.kept, 1)
			e.mu.Unlock()
			mem[0] = 1 // as a late write does, to no effect
			_ = a.Close()
			<-written
			l.close(t)
		})
	}
}
