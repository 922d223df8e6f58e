package engine

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// TestSlowCopies: copies that take long, for example of memory that is on a disk, leave all of the peer's receive
// slots to everything else. Once they end, they and what follows them arrive, however few slots there are.
func TestSlowCopies(t *testing.T) {
	for slots := framing.MinSlots; slots <= 4*framing.MinSlots; slots++ {
		mappedLink(t, Config{PeerSlots: slots, Ring: MinRing}, func(t *testing.T, l *link) {
			const size = 16 << 10
			slow, readers, copies := make([]*Conn, 2*slots), make([]*Conn, 2*slots), make([]copied, 2*slots)
			for i := range slow {
				slow[i], readers[i] = l.dial(t)
				warmUp(t, slow[i], readers[i])
			}
			a, b := l.dial(t)
			for i, c := range slow {
				synctest.Wait() // for credit
				locked(l.ea, func() { copies[i] = c.stream.prepareCopy(size) })
				require.Len(t, copies[i].mem, size)
				carry(t, a, b, 1)
			}
			var rest []*Conn      // whose next byte finds no room to wait in
			locked(l.ea, func() { // all at once, so that what is behind them has to wait
				for i, c := range slow {
					assert.True(t, c.stream.commitCopy(&copies[i]))
					if c.stream.trySmall([]byte{2}) == 0 {
						rest = append(rest, c)
					}
				}
			})
			assert.Less(t, len(rest), len(slow))
			for _, c := range rest {
				go func() {
					_, err := c.Write([]byte{2})
					assert.NoError(t, err)
				}()
			}
			for _, r := range readers {
				assert.EqualValues(t, 2, mustRead(t, r, size+1)[size])
			}
			resetConns(t, append(append(slow, readers...), a, b)...)
		})
	}
}

// TestCopiesGoFirst: data does not overtake the announcement of a copy before it.
func TestCopiesGoFirst(t *testing.T) {
	mappedConn(t, Config{}, func(t *testing.T, l *link, a, b *Conn) {
		carry(t, b, a, 1) // brings credits
		locked(l.ea, func() {
			s, tx := a.stream, l.ea.core.tx
			w := s.prepareCopy(64 << 10)
			h := &crowd{t: t, e: l.ea}
			var taken []uint32
			for s.p.mayFrame() {
				taken = append(taken, h.holdSlot(s.p))
			}
			require.True(t, s.commitCopy(&w))
			for _, slot := range taken {
				tx.Put(slot)
				s.p.holdSends(-1, 0)
			}
			require.Equal(t, 1, s.trySmall([]byte{2}))
			assert.True(t, s.hasPending())
			s.p.flush()
			assert.False(t, s.hasPending())
		})
		require.NoError(t, readN(b, 64<<10+1))
		resetConns(t, a, b)
	})
}

// TestNoSlotToSpill: data that cannot leave at once, for whatever reason, takes no spill slot that is not there.
func TestNoSlotToSpill(t *testing.T) {
	mappedLink(t, Config{}, func(t *testing.T, l *link) {
		a, b := l.dial(t)
		mem := make([]byte, 2*SpillSize)
		locked(l.ea, func() {
			s, p := a.stream, a.stream.p
			had := p.spill
			p.spill = Spill{mem[:SpillSize], mem[SpillSize:]}
			for range spillSlots { // as frames that the fabric has not taken yet hold them
				p.beginSpill(s.id, 1<<40)
			}
			p.control(ctlFrame{t: framing.TypeFinAck, stream: 1 << 20}) // not flushed yet
			require.True(t, p.mayData(1))
			assert.Zero(t, s.trySmall([]byte{1}))
			for i := range spillSlots {
				p.endSpill(i)
			}
			p.spill = had
		})
		resetConns(t, a, b)
	})
}

// TestUndoneCopies: a copy that the peer is not told of is not counted, and no counter goes back.
func TestUndoneCopies(t *testing.T) {
	mappedConn(t, Config{}, func(t *testing.T, l *link, a, _ *Conn) {
		stats, conn := l.ea.Stats(), a.Seen()
		var w copied
		locked(l.ea, func() { w = a.stream.prepareCopy(64 << 10) })
		assert.Equal(t, stats.Copies, l.ea.Stats().Copies)
		l.a.Lost(errInjected)
		locked(l.ea, func() { assert.False(t, a.stream.commitCopy(&w)) })
		after := l.ea.Stats()
		assert.Equal(t, []uint64{stats.RDMABytesSent, stats.RDMAWrites, stats.Copies.Mapped}, []uint64{after.RDMABytesSent, after.RDMAWrites, after.Copies.Mapped})
		assert.Equal(t, conn, a.Seen())
	})
}

// TestLargePath: LargePath says how the conn's own data goes, not what became of another conn's ring.
func TestLargePath(t *testing.T) {
	mappedLink(t, Config{}, func(t *testing.T, l *link) {
		p := l.ea.core.peers[l.a.p.id]
		a1, b1 := l.dial(t)
		warmUp(t, a1, b1)
		p.cfg.Memory = func(pool.SharedName) (*pool.Slab, error) { return nil, errors.New("no") }
		a2, b2 := l.dial(t)
		inFrames(t, a2, b2)
		before := l.ea.Stats().Copies.Mapped
		carry(t, a1, b1, 64<<10)
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
