package engine

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// TestExit: over shared memory, what Write has returned for arrives though its process has ended, in whatever state
// the peer, the receive slots and the queues are. More streams write than can spill data at the same time.
func TestExit(t *testing.T) {
	for seed := range uint64(100) {
		onVirtualTime(t, fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			sim := simfabric.Config{Seed: rng.Uint64(), Personality: simfabric.Shm(), AgainRate: float64(rng.IntN(2)) / 4}
			l := newLink(t, sim, Config{Spin: -1, PeerSlots: 4 + rng.IntN(30)})
			var near, far []*Conn
			for range 1 + rng.IntN(2*spillSlots) {
				a, b := l.dial(t)
				near, far = append(near, a), append(far, b)
			}
			written, least, data := make([]int, len(near)), make([]int, len(near)), pattern
			write := func(times int) {
				for range times {
					i := rng.IntN(len(near))
					require.NoError(t, near[i].SetWriteDeadline(time.Now().Add(time.Millisecond)))
					n, err := near[i].Write(data[written[i]:][:1+rng.IntN(1<<rng.IntN(14))])
					if written[i] += n; err == nil { // if not, some of it may be queued only
						least[i] = written[i]
					}
					require.True(t, err == nil || errors.Is(err, os.ErrDeadlineExceeded), "%v", err)
				}
			}
			write(rng.IntN(100))
			if rng.IntN(4) > 0 { // the peer is stopped, so that it gives no slots back
				l.net.Freeze(l.eb.fab)
				write(rng.IntN(300))
				if rng.IntN(2) == 0 {
					l.net.Thaw(l.eb.fab)
					write(rng.IntN(100))
				}
			}
			l.net.Kill(l.ea.fab, simfabric.DeathSilent) // as shm does
			l.net.Thaw(l.eb.fab)
			l.b.Lost(io.ErrUnexpectedEOF)
			for i, b := range far {
				got, err := io.ReadAll(onlyReader{b})
				require.Error(t, err, "the writer did not end the stream")
				assert.LessOrEqual(t, least[i], len(got), "conn %d", i)
				assert.LessOrEqual(t, len(got), written[i], "conn %d", i)
				require.Equal(t, data[:len(got)], got)
			}
			l.a.Lost(io.ErrUnexpectedEOF)
			resetConns(t, append(near, far...)...)
			l.close(t)
		})
	}
}

// salvaged is what can be read over shared memory, where "hello" had come, once the writer died, which f has prepared.
func salvaged(t *testing.T, f func(l *link, a, b *Conn)) (string, error) {
	l := newLink(t, simfabric.Config{Personality: simfabric.Shm()}, Config{Spin: -1})
	a, b := l.dial(t)
	mustWrite(t, a, []byte("hello"))
	synctest.Wait()
	f(l, a, b)
	l.b.Lost(io.ErrUnexpectedEOF)
	got, err := io.ReadAll(onlyReader{b})
	l.a.Lost(io.ErrUnexpectedEOF)
	resetConns(t, a, b)
	l.close(t)
	return string(got), err
}

// TestSalvageBeforeFin: the end of a stream may have been posted before data that waited for a slot.
func TestSalvageBeforeFin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got, err := salvaged(t, func(l *link, a, b *Conn) {
			s := &l.a.p.spilling
			locked(l.ea, func() { s.addSpill(s.beginSpill(a.stream.id, 5), []byte("!")) })
			locked(l.eb, func() { require.NoError(t, b.stream.finished(6, false)) })
		})
		require.NoError(t, err)
		require.Equal(t, "hello!", got)
	})
}

// TestSalvageChecks: what a hostile peer leaves in its spill does no harm.
func TestSalvageChecks(t *testing.T) {
	for name, spoil := range map[string]func(s *spilling, stream uint32, pos uint64){
		"a length beyond the slot": func(s *spilling, stream uint32, pos uint64) {
			s.beginSpill(stream, pos)
			lengthOf(slotOf(s.spill.Own, 0)).Store(1 << 31)
		},
		"no such stream":         func(s *spilling, stream uint32, pos uint64) { s.addSpill(s.beginSpill(stream+1, pos), []byte("x")) },
		"what has come before":   func(s *spilling, stream uint32, pos uint64) { s.addSpill(s.beginSpill(stream, pos-1), []byte("x")) },
		"what comes after a gap": func(s *spilling, stream uint32, pos uint64) { s.addSpill(s.beginSpill(stream, pos+1), []byte("x")) },
	} {
		onVirtualTime(t, name, func(t *testing.T) {
			got, err := salvaged(t, func(l *link, a, _ *Conn) {
				locked(l.ea, func() { spoil(&l.a.p.spilling, a.stream.id, 5) })
			})
			require.Error(t, err)
			require.Equal(t, "hello", got)
		})
	}
}
