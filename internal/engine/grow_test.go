package engine

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/pool"
)

// ringSizes returns how large the rings are that the conn has for what it receives, first the one that
// takes what comes.
func ringSizes(c *Conn) (sizes []int) {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	for _, l := range []*inLease{c.stream.inLease, c.stream.oldLease, c.stream.nextLease} {
		if l != nil {
			sizes = append(sizes, len(l.Ring.Bytes))
		}
	}
	return sizes
}

// TestRingGrows: round trips that fit the first ring never make it grow. A writer that finds it full gets a
// second one, although nobody reads, and goes on in that; the first one is gone once it was read. What a
// conn holds is bounded, and arrives as it was sent, also if the user holds pieces of the first ring for long.
func TestRingGrows(t *testing.T) {
	virtual(t, Config{Ring: 1 << 20, first: 256 << 10, Window: 64 << 10}, func(t *testing.T, l *link) {
		a, b := l.dial(t)
		warmUpBy(t, a, b, 16<<10) // which asks for no more
		for range 40 {
			for _, way := range [][2]*Conn{{a, b}, {b, a}} {
				carry(t, way[0], way[1], 16<<10)
			}
		}
		require.Equal(t, []int{256 << 10}, ringSizes(b), "what fits")

		sent := fillWith(t, a, 32<<10)
		require.Equal(t, []int{1 << 20, 256 << 10}, ringSizes(b), "both are full")
		assert.Greater(t, sent, 1<<20, "they hold")
		assert.Less(t, sent, 1<<20+256<<10+2*DefaultMaxWindow, "no more than they should")

		require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Minute)))
		held := hold(t, b, 384<<10) // of both
		at := 0
		for _, h := range held {
			checkFrom(t, at, h.Bytes())
			at += len(h.Bytes())
		}
		rest := make([]byte, sent-at)
		_, err := io.ReadFull(b, rest)
		require.NoError(t, err)
		checkFrom(t, at, rest)
		assert.Equal(t, []int{1 << 20, 256 << 10}, ringSizes(b), "the user holds some of the first")
		at = 0
		for _, h := range held {
			checkFrom(t, at, h.Bytes()) // still as it was
			at += len(h.Bytes())
			h.Release()
		}
		assert.Equal(t, []int{1 << 20}, ringSizes(b), "nobody holds any")
		end(t, nil, a, b)
		time.Sleep(time.Second)
		l.eb.mu.Lock()
		defer l.eb.mu.Unlock()
		assert.Zero(t, l.eb.core.leases.out())
	})
}

// TestRingFits: a writer of large pieces gets a larger ring before it finds the first one full.
func TestRingFits(t *testing.T) {
	virtual(t, Config{Ring: 1 << 20, first: 256 << 10}, func(t *testing.T, l *link) {
		a, b := l.dial(t)
		warmUp(t, a, b)
		for range 8 { // it may take a while until the second one is there
			carry(t, a, b, stepSize)
			time.Sleep(time.Millisecond)
		}
		assert.Equal(t, []int{1 << 20}, ringSizes(b))
		end(t, nil, a, b)
	})
}

// TestRingRefused: a writer that cannot map the second ring goes on in the first, and asks for no other.
func TestRingRefused(t *testing.T) {
	mappedLink(t, Config{Ring: 1 << 20, first: 256 << 10}, func(t *testing.T, l *link) {
		a, b := l.dial(t)
		p := l.ea.core.peers[l.a.p.id]
		open := p.cfg.Memory
		p.cfg.Memory = func(name pool.SharedName) (*pool.Slab, error) {
			if len(ringSizes(b)) > 1 {
				return nil, errInjected
			}
			return open(name)
		}
		for range 20 {
			carry(t, a, b, stepSize)
			time.Sleep(time.Millisecond)
		}
		assert.Equal(t, []int{256 << 10}, ringSizes(b))
		assert.Equal(t, byCopy.String(), a.LargePath())
		assert.Equal(t, errInjected, a.stream.p.unmapped)
		before := a.Seen().LargeOut
		carry(t, a, b, stepSize)
		assert.EqualValues(t, stepSize, a.Seen().LargeOut-before, "in the ring")
		time.Sleep(5 * choreTime)
		assert.Empty(t, ringSizes(b), "idle conns have none")
		end(t, nil, a, b)
	})
}

// TestGrowthRefused: a ring that could not grow for want of memory does so later, and other conns of the
// peer get rings, too.
func TestGrowthRefused(t *testing.T) {
	virtual(t, Config{Ring: 1 << 20, first: 128 << 10, Budget: pool.NewBudget(64 << 20)}, func(t *testing.T, l *link) {
		a, b := l.dial(t)
		warmUpBy(t, a, b, 16<<10)
		require.Equal(t, []int{128 << 10}, ringSizes(b))
		var taken int64
		locked(l.eb, func() {
			b.stream.filled(uint64(b.stream.inLease.Index))
			s := l.eb.core.cfg.Budget.Stats() // others are faster
			taken = s.Limit - s.Used - 1<<20
			require.NoError(t, l.eb.core.cfg.Budget.Reserve(taken))
		})
		time.Sleep(10 * choreTime)
		assert.Zero(t, l.eb.core.cfg.Budget.Shortages(), "nobody else has to give up a ring for that")
		l.eb.core.cfg.Budget.Release(taken)
		c, d := l.dial(t)
		fillWith(t, c, 32<<10)
		fillWith(t, a, 32<<10)
		time.Sleep(10 * choreTime)
		assert.Equal(t, []int{1 << 20, 128 << 10}, ringSizes(d))
		assert.Equal(t, []int{1 << 20, 128 << 10}, ringSizes(b))
		end(t, nil, a, b, c, d)
	})
}

// TestRingsThatGrowTogether: a ring that is about to go is no ring more among which the peer's memory is divided.
func TestRingsThatGrowTogether(t *testing.T) {
	virtual(t, Config{Ring: 2 << 20, first: 256 << 10}, func(t *testing.T, l *link) {
		var conns []*Conn
		for range ringsTotal / (2 << 20) {
			a, b := l.dial(t)
			conns = append(conns, a, b)
		}
		for range 40 {
			for i := 0; i < len(conns); i += 2 {
				go func() { _, _ = conns[i].Write(make([]byte, stepSize)) }()
			}
			for i := 1; i < len(conns); i += 2 {
				_, err := io.ReadFull(conns[i], make([]byte, stepSize))
				require.NoError(t, err)
			}
			time.Sleep(time.Millisecond)
		}
		for i := 1; i < len(conns); i += 2 {
			assert.Equal(t, []int{2 << 20}, ringSizes(conns[i]))
		}
		end(t, nil, conns...)
	})
}

// TestNoRingForNobody: what nobody will read gets no second ring, and loses it with the peer.
func TestNoRingForNobody(t *testing.T) {
	virtual(t, Config{Ring: 1 << 20, first: 256 << 10}, func(t *testing.T, l *link) {
		a, b := l.dial(t)
		warmUpBy(t, a, b, 16<<10)
		locked(l.ea, func() { a.stream.p.doom(ErrEndpointClosed) }) // so that no Return comes
		locked(l.eb, func() { b.stream.filled(uint64(b.stream.inLease.Index)) })
		time.Sleep(time.Millisecond)
		require.Len(t, ringSizes(b), 2)
		locked(l.eb, func() { b.stream.p.doom(ErrStuck) })
		assert.Equal(t, []int{256 << 10}, ringSizes(b), "the peer is lost")
		closeConns(t, a, b)
	})
	virtual(t, Config{Ring: 1 << 20, first: 256 << 10}, func(t *testing.T, l *link) {
		a, b := l.dial(t)
		warmUpBy(t, a, b, 16<<10)
		locked(l.eb, func() {
			b.stream.close()
			b.stream.filled(uint64(b.stream.inLease.Index))
			assert.Equal(t, claimNone, b.stream.claim, "a conn that was closed")
			assert.Nil(t, b.stream.nextLease)
		})
		require.NoError(t, a.Close())
	})
}

// TestRingStays: a ring does not grow while memory is short, but does once it is not.
func TestRingStays(t *testing.T) {
	virtual(t, Config{Ring: 1 << 20, first: 128 << 10, Budget: pool.NewBudget(16 << 20)}, func(t *testing.T, l *link) {
		a, b := l.dial(t)
		s := l.eb.core.cfg.Budget.Stats()
		taken := s.Limit*5/8 - s.Used
		require.NoError(t, l.eb.core.cfg.Budget.Reserve(taken))
		fillWith(t, a, 32<<10)
		time.Sleep(5 * choreTime)
		assert.Equal(t, []int{128 << 10}, ringSizes(b), "memory is short")
		l.eb.core.cfg.Budget.Release(taken)
		fillWith(t, a, 32<<10)
		time.Sleep(5 * choreTime)
		assert.Equal(t, []int{1 << 20, 128 << 10}, ringSizes(b), "memory is there")
		end(t, nil, a, b)
	})
}
