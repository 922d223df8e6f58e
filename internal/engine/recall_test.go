package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// leased opens n conns that have rings. The rings of the first unread of them hold data that is not read.
func leased(t *testing.T, l *link, n, unread int) (out, in []*Conn) {
	for i := range n {
		a, b := l.dial(t)
		warmUp(t, a, b)
		if i < unread {
			require.NoError(t, writeN(a, 32<<10))
		}
		out, in = append(out, a), append(in, b)
	}
	time.Sleep(2 * leaseTurn)
	return out, in
}

// recalls asks for rings as often as memory may be refused in a while, and reports whether c's was among them.
func recalls(l *link, c *Conn) bool {
	back := false
	for i := 0; i < 100 && !back; i++ {
		time.Sleep(time.Millisecond)
		locked(l.eb, func() {
			l.eb.core.makeRings()
			in := c.stream.inLease
			back = in == nil || in.state != leaseGranted
		})
	}
	return back
}

// TestRecallPassesSlowReaders: conns whose readers do not read do not keep the rings of others from being asked for.
func TestRecallPassesSlowReaders(t *testing.T) {
	virtual(t, Config{Ring: 64 << 10}, func(t *testing.T, l *link) {
		const n = 14
		_, in := leased(t, l, n, n-1)
		assert.True(t, recalls(l, in[n-1]))
	})
}

// TestRecallPassesStopped: nor do the conns of a process that is stopped, and so gives nothing back.
func TestRecallPassesStopped(t *testing.T) {
	s := newStar(t, simfabric.Config{Seed: 1, Personality: simfabric.TCP()}, Config{Ring: 64 << 10}, 2)
	defer s.close(t)
	var conns []*Conn
	for i := range 15 {
		outer, inner := s.dial(t, i/14)
		warmUp(t, outer, inner)
		conns = append(conns, outer, inner)
	}
	s.net.Freeze(s.spokes[0].fab)
	time.Sleep(2 * leaseTurn)
	l := &link{eb: s.hub}
	assert.True(t, recalls(l, conns[len(conns)-1]))
	s.net.Thaw(s.spokes[0].fab)
	resetConns(t, conns...)
}

// TestRecallEndsPeer: a peer takes no answers, and the next one, which asks it for a ring, ends it
// while other conns of the peer are closed and have rings, too.
func TestRecallEndsPeer(t *testing.T) {
	l := newLink(t, simfabric.Config{Seed: 1, Personality: simfabric.TCP()}, Config{Ring: 64 << 10, Spin: -1})
	_, in := leased(t, l, 3, 0)
	l.net.Freeze(l.ea.fab)
	defer l.net.Thaw(l.ea.fab)
	l.eb.enter()
	for _, c := range in[1:] {
		c.stream.close()
		require.NotNil(t, c.stream.inLease)
	}
	p := l.b.p
	for p.ctl.len() < maxControl+8*len(p.streams) {
		p.ctl.push(ctlFrame{})
	}
	for _, c := range in {
		c.stream.inLease.touched -= int64(2 * choreTime)
	}
	assert.NotPanics(t, func() { l.eb.core.reclaim() })
	assert.Error(t, p.err)
	l.eb.leave()
}
