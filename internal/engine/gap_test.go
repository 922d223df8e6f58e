package engine

import (
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// TestGap: a message of one conn is lost while another conn's go on without a pause. What follows it shows that it
// is missing, which ends the peer soon after DeadAfter.
func TestGap(t *testing.T) {
	synced(func(t *testing.T, p simfabric.Personality) {
		for _, size := range []int{1, 20_000} { // frames, and writes to a ring
			b := newBeating(t, p)
			if b.a.p.rule == byDeliver {
				continue // what follows a write may come long before its announcement
			}
			x, y := b.dial(t)
			var traffic sync.WaitGroup
			var pause atomic.Bool
			for side, c := range []*Conn{x, y} {
				traffic.Go(func() { _ = pingPong(c, 1, time.Millisecond, side == 0, &pause) })
			}
			traffic.Go(func() { _, _ = io.Copy(io.Discard, b.conn[1]) })
			for range 10 {
				_, err := b.conn[0].Write(make([]byte, size))
				require.NoError(t, err)
				time.Sleep(10 * time.Millisecond)
			}
			p := b.b.p
			b.eb.enter()
			s := b.conn[1].stream
			s.rcvNxt-- // as if a byte before had not come
			s.finPos, s.recv = s.rcvNxt+1, recvFin
			b.eb.leave()
			took := b.untilLost()
			assert.LessOrEqual(t, took, b.dead*5/3+step)
			assert.GreaterOrEqual(t, took, b.dead)
			assert.ErrorIs(t, p.err, ErrMissing)
			assert.ErrorContains(t, p.err, "precedes")
			b.beat()
			traffic.Wait()
		}
	})(t)
}

// TestHasGap: what waits for its turn is a gap, and what waits for nothing is none.
func TestHasGap(t *testing.T) {
	bare(t, simfabric.RuleCQData(), func(l *link) {
		a, b := l.dial(t)
		warmUp(t, a, b)
		s := b.stream
		l.eb.enter()
		defer l.eb.leave()
		require.NotNil(t, s.inLease)
		assert.False(t, s.hasGap())
		for name, have := range map[string]func() (undo func()){
			"a frame": func() func() {
				s.held = []heldFrame{{pos: s.rcvNxt + 5}}
				return func() { s.held = nil }
			},
			"a Fin": func() func() {
				s.recv = recvFin
				return func() { s.recv = recvOpen }
			},
			"a write that has landed": func() func() {
				w := s.inLease.slot(s.inLease.seq + 1)
				w.landed = true
				return func() { *w = landing{} }
			},
			"a write that was announced": func() func() {
				w := s.inLease.slot(s.inLease.seq)
				w.announced = true
				return func() { *w = landing{} }
			},
			"a write to a second ring": func() func() {
				s.nextLease = &inLease{}
				s.nextLease.writes[3].landed = true
				return func() { s.nextLease = nil }
			},
		} {
			undo := have()
			assert.True(t, s.hasGap(), name)
			s.gap = gap{at: s.rcvNxt, lasts: l.eb.core.cfg.DeadAfter}
			assert.ErrorIs(t, s.p.loss(), ErrMissing, name)
			s.gap.at--
			assert.NoError(t, s.p.loss(), "its position has moved since")
			s.gap.at++
			was := s.recv
			for _, r := range []recvState{recvEOF, recvCut} {
				s.recv = r
				assert.False(t, s.hasGap(), "nothing is waited for")
			}
			s.recv, s.err = was, syscall.ECONNRESET
			assert.False(t, s.hasGap(), "nothing is taken in")
			s.err = nil
			undo()
			assert.False(t, s.hasGap(), name)
			assert.NoError(t, s.p.loss(), "it has come since")
			s.gap = gap{}
		}
	})
}
