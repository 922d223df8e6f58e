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

// bare is two endpoints of which the second gets heartbeats by hand, and nothing moves
// meanwhile but what the test says.
func bare(t *testing.T, p simfabric.Personality, f func(l *link)) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, simfabric.Config{Seed: 1, Personality: p}, Config{Spin: -1})
		f(l)
		require.NoError(t, l.ea.Close())
		require.NoError(t, l.eb.Close())
	})
}

// TestWritesAreHeard: a peer is not silent whose writes come, though all of them continue
// what came before, and its frames are behind them.
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
			if p.proves {
				data = framing.Immediate(data).Proven(p.proofIn)
			}
			p.c.landed(data)
			l.eb.leave()
			l.b.Heartbeat(true)
		}
		assert.NoError(t, p.err)
		l.net.Thaw(l.ea.fab)
	})
}

// inLeaseIndex is 0 without a lease: an index that the peer has had.
func (s *stream) inLeaseIndex() uint16 {
	if s.inLease == nil {
		return 0
	}
	return s.inLease.Index
}

// TestStoppedWhileMissing: a Ping that has overtaken messages of its epoch, before one of the
// two processes was stopped for a while, is no loss: they have some time after that.
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
