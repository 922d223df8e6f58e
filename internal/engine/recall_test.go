package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// leased is conns that have rings, of which the first so many have data in them that is not
// read.
func leased(t *testing.T, l *link, n, unread int) (out, in []*Conn) {
	for i := range n {
		a, b := l.dial(t)
		warmUp(t, a, b)
		if i < unread {
			_, err := a.Write(make([]byte, 32<<10))
			require.NoError(t, err)
		}
		out, in = append(out, a), append(in, b)
	}
	time.Sleep(2 * leaseTurn)
	return out, in
}

// recalls asks for rings as often as memory may be refused in a while, and reports whether
// that of c was among them.
func recalls(l *link, c *Conn) bool {
	for range 100 {
		l.eb.enter()
		l.eb.core.makeRings()
		in := c.stream.inLease
		back := in == nil || in.State() != pool.LeaseGranted
		l.eb.leave()
		if back {
			return true
		}
		time.Sleep(time.Millisecond)
	}
	return false
}

// TestRecallPassesEnded: a conn that has ended, and whose reader has left data in its ring,
// does not keep others' rings from being asked for.
func TestRecallPassesEnded(t *testing.T) {
	virtual(t, Config{Ring: 64 << 10}, func(t *testing.T, l *link) {
		out, in := leased(t, l, 2, 1)
		require.NotZero(t, in[0].stream.largeIn-in[0].stream.largeRel)
		require.NoError(t, out[0].CloseWrite())
		time.Sleep(10 * time.Millisecond)
		require.Equal(t, pool.LeaseReturned, in[0].stream.inLease.State())
		assert.True(t, recalls(l, in[1]))
	})
}

// TestRecallPassesSlowReaders: conns whose readers do not read do not keep others' rings
// from being asked for.
func TestRecallPassesSlowReaders(t *testing.T) {
	virtual(t, Config{Ring: 64 << 10}, func(t *testing.T, l *link) {
		const n = 14
		_, in := leased(t, l, n, n-1)
		assert.True(t, recalls(l, in[n-1]))
	})
}

// TestRecallPassesDead: neither do conns of a peer that is lost, which its user has not
// closed yet.
func TestRecallPassesDead(t *testing.T) {
	s := newStar(t, simfabric.Config{Seed: 1, Personality: simfabric.TCP()}, Config{Ring: 64 << 10}, 1)
	defer s.close(t)
	var conns []*Conn
	for range 14 {
		outer, inner := s.dial(t, 0)
		warmUp(t, outer, inner)
		conns = append(conns, outer, inner)
	}
	s.hub.enter()
	for _, st := range slices.Clone(s.hubs[0].p.list) {
		st.revoke()
	}
	s.hub.core.fail(s.hubs[0].p, errGoodbye) // before it could answer
	returning := s.hub.core.rings.returning
	s.hub.leave()
	assert.Zero(t, returning)
	for _, c := range conns {
		require.NoError(t, c.SetLinger(0))
		require.NoError(t, c.Close())
	}
}
