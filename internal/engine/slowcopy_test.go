package engine

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// TestSlowCopies: copies that take long, for example of memory that is on a disk, leave some of the
// peer's receive slots to everything else, however often these are used.
func TestSlowCopies(t *testing.T) {
	for slots := framing.MinSlots; slots <= 4*framing.MinSlots; slots++ {
		mappedLink(t, Config{PeerSlots: slots}, func(t *testing.T, l *link) { testSlowCopies(t, l, slots) })
	}
}

func testSlowCopies(t *testing.T, l *link, slots int) {
	const size = 16 << 10
	slow, slowReader := l.dial(t)
	waits, waitsReader := l.dial(t) // for one of them to end
	warmUp(t, slow, slowReader)
	warmUp(t, waits, waitsReader)
	a, b := l.dial(t)
	var copies []copied
	for range 20 {
		locked(l.ea, func() {
			for w := slow.stream.prepareCopy(size); w.mem != nil; w = slow.stream.prepareCopy(size) {
				copies = append(copies, w)
			}
			assert.LessOrEqual(t, len(copies), slots/2-1)
			assert.False(t, waits.stream.copies() && waits.stream.maySpend())
		})
		require.NotEmpty(t, copies)
		_, err := a.Write([]byte{1})
		require.NoError(t, err)
		_, err = b.Read(make([]byte, 1))
		require.NoError(t, err)
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := waits.Write(make([]byte, size))
		wrote <- err
	}()
	synctest.Wait()
	for i := range copies {
		locked(l.ea, func() { assert.True(t, slow.stream.commitCopy(&copies[i])) })
	}
	require.NoError(t, <-wrote)
	resetConns(t, slow, slowReader, waits, waitsReader, a, b)
}

// TestCopiesAreNotOwed: while copies are under way, the peer does not owe the slots that they hold.
func TestCopiesAreNotOwed(t *testing.T) {
	mappedLink(t, Config{}, func(t *testing.T, l *link) {
		a, b := l.dial(t)
		warmUp(t, a, b)
		var w copied
		locked(l.ea, func() {
			w = a.stream.prepareCopy(64 << 10)
			p := a.stream.p
			p.pending.push(a.stream)
			for range 100 {
				p.starved += choreTime
				assert.False(t, p.checkPending())
			}
			p.pending = fifo[*stream]{}
			a.stream.commitCopy(&w)
		})
		resetConns(t, a, b)
	})
}

// TestUndoneCopies: a copy that the peer is not told of is not counted, and no counter goes back.
func TestUndoneCopies(t *testing.T) {
	mappedLink(t, Config{}, func(t *testing.T, l *link) {
		a, b := l.dial(t)
		warmUp(t, a, b)
		stats, conn := l.ea.Stats(), a.Counters()
		var w copied
		locked(l.ea, func() { w = a.stream.prepareCopy(64 << 10) })
		assert.Equal(t, stats.Copies, l.ea.Stats().Copies)
		l.a.Lost(errInjected)
		locked(l.ea, func() { assert.False(t, a.stream.commitCopy(&w)) })
		after := l.ea.Stats()
		assert.Equal(t, []uint64{stats.RDMABytesSent, stats.RDMAWrites, stats.Copies.Mapped}, []uint64{after.RDMABytesSent, after.RDMAWrites, after.Copies.Mapped})
		assert.Equal(t, conn, a.Counters())
		giveUp(a, b)
	})
}

// TestLargePath: LargePath says how the conn's own data goes, not what became of another conn's
// ring.
func TestLargePath(t *testing.T) {
	mappedLink(t, Config{}, func(t *testing.T, l *link) {
		p := l.ea.core.peers[l.a.p.id]
		a1, b1 := l.dial(t)
		warmUp(t, a1, b1)
		p.cfg.Memory = func(pool.SharedName) (*pool.Slab, error) { return nil, errors.New("no") }
		a2, b2 := l.dial(t)
		inFrames(t, a2, b2)
		before := l.ea.Stats().Copies.Mapped
		go func() {
			_, err := a1.Write(make([]byte, 64<<10))
			assert.NoError(t, err)
		}()
		_, err := io.ReadFull(b1, make([]byte, 64<<10))
		require.NoError(t, err)
		assert.EqualValues(t, 64<<10, l.ea.Stats().Copies.Mapped-before)
		assert.Equal(t, "copy to a ring that both processes map, then send", a1.LargePath())
		assert.Contains(t, a2.LargePath(), "(not mapped, so in frames: no)")
		resetConns(t, a1, b1, a2, b2)
	})
}

// TestForeignMemoryGoes: memory of the peer's is unmapped along with the endpoint, even if the
// endpoint cannot be closed: the fabric has nothing to do with that memory.
func TestForeignMemoryGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, simfabric.Config{Seed: 5, Personality: simfabric.Shm()}, Config{Spin: -1})
		a, b := l.dial(t)
		warmUp(t, a, b)
		var w copied
		locked(l.ea, func() { w = a.stream.prepareCopy(64 << 10) })
		foreign := func() int64 { return l.ea.core.cfg.Budget.Stats().Foreign }
		l.net.FailCall(l.ea.fab, simfabric.Fault{Call: simfabric.CallShutdown, More: -1, Err: errInjected})
		require.ErrorIs(t, l.ea.Close(), errInjected)
		assert.NotZero(t, foreign(), "while it is copied there")
		w.mem[0] = 1
		locked(l.ea, func() { a.stream.commitCopy(&w) })
		assert.Zero(t, foreign())
		l.b.Lost(errInjected)
		giveUp(a, b)
		_ = l.eb.Close()
	})
}
