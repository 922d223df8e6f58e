package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// bare runs f with two endpoints on virtual time. The second gets its heartbeats by hand, and
// nothing moves except what the test moves.
func bare(t *testing.T, p simfabric.Personality, f func(l *link)) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, simfabric.Config{Seed: 1, Personality: p}, Config{Spin: -1})
		f(l)
		require.NoError(t, l.ea.Close())
		require.NoError(t, l.eb.Close())
	})
}

// TestWritesAreHeard: a peer whose writes arrive is not silent, even if all of them continue the
// writes before them, and its frames are stuck behind them.
func TestWritesAreHeard(t *testing.T) {
	bare(t, simfabric.RuleCQData(), func(l *link) {
		a, b := l.dial(t)
		warmUp(t, a, b)
		l.net.Freeze(l.ea.fab) // no frames
		p := l.b.p
		l.eb.enter()
		p.granted += 1000
		p.advertised += 1000
		p.c.promised += 1000
		l.eb.leave()
		for range 40 {
			time.Sleep(500 * time.Millisecond)
			l.eb.enter()
			data := uint64(framing.MakeImmediate(b.stream.inLeaseIndex(), 100, true, 0))
			if p.rule == byCQData {
				data = framing.Immediate(data).Proven(p.proofIn)
			}
			p.c.landed(data)
			l.eb.leave()
			l.b.Heartbeat()
		}
		assert.NoError(t, p.err)
		l.net.Thaw(l.ea.fab)
	})
}

// inLeaseIndex is the index of the stream's lease, or 0 if it has none: an index that the peer has
// had.
func (s *stream) inLeaseIndex() uint16 {
	if s.inLease == nil {
		return 0
	}
	return s.inLease.Index
}

// TestStoppedWhileMissing: a Ping overtakes messages of its epoch, and then one of the two
// processes is stopped for a while. The messages are not lost: they get some more time afterwards.
func TestStoppedWhileMissing(t *testing.T) {
	bare(t, simfabric.TCP(), func(l *link) {
		p := l.b.p
		beat := func() {
			l.eb.beat(p)
		}
		beat()
		time.Sleep(100 * time.Millisecond)
		l.eb.enter()
		h := &p.beats
		require.NoError(t, p.epochEnded(framing.Beat{Epoch: h.ends, Messages: h.came[h.ends&1] + 1}.Pos()))
		l.eb.leave()
		for _, d := range []time.Duration{10, 7} {
			time.Sleep(d * time.Second) // stopped; DeadAfter is 15 s
			beat()
			assert.NoError(t, p.err)
		}
	})
}
