package engine

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// counted is an endpoint that counts what costs time in real ones.
type counted struct {
	fabric.Endpoint
	sends, along atomic.Int32 // calls that post a send; those of them that post a receive, too
	wakes        atomic.Int32
}

func (c *counted) Exchange(ops []fabric.Op, done []fabric.Completion) (posted, reaped int, err error) {
	isRecv := func(op fabric.Op) bool { return op.Kind == fabric.Recv }
	if len(ops) > 0 && !isRecv(ops[0]) {
		c.sends.Add(1)
		if slices.ContainsFunc(ops, isRecv) {
			c.along.Add(1)
		}
	}
	return c.Endpoint.Exchange(ops, done)
}

func (c *counted) Waiter() fabric.Waiter {
	if w := c.Endpoint.Waiter(); w != nil {
		return countedWaiter{w, &c.wakes}
	}
	return nil
}

type countedWaiter struct {
	fabric.Waiter
	wakes *atomic.Int32
}

func (w countedWaiter) Wake() {
	w.wakes.Add(1)
	w.Waiter.Wake()
}

// countedLink returns the link, its conns, and the dialling side's endpoint.
func countedLink(t *testing.T, sim simfabric.Config, cfg Config) (l *link, a, b *Conn, end *counted) {
	l, err := newLinkOf(sim, cfg, func(e fabric.Endpoint) fabric.Endpoint {
		c := &counted{Endpoint: e}
		if end == nil {
			end = c
		}
		return c
	})
	require.NoError(t, err)
	a, b = l.dial(t)
	return l, a, b, end
}

// TestReceiveGoesWithTheAnswer: in one call, where somebody answers at once.
func TestReceiveGoesWithTheAnswer(t *testing.T) {
	for _, name := range []string{"shm", "tcp", "verbs"} {
		t.Run(name, func(t *testing.T) {
			l, a, b, end := countedLink(t, personalities()[name], Config{Spin: 10 * time.Millisecond})
			echoed := make(chan error, 1)
			go func() { echoed <- echo(b, 64) }()
			before := [2]int32{end.sends.Load(), end.along.Load()}
			const trips = 500
			for range trips {
				require.NoError(t, roundTrip(a, make([]byte, 64)))
			}
			sends, along := end.sends.Load()-before[0], end.along.Load()-before[1]
			assert.GreaterOrEqual(t, sends, int32(trips))
			assert.GreaterOrEqual(t, along, int32(trips/4), "of %d calls", sends)
			require.NoError(t, a.Close())
			require.NoError(t, <-echoed)
			require.NoError(t, b.Close())
			l.close(t)
		})
	}
}

// TestReceivesDoNotWaitForAnAnswer that never comes: the peer gets its slots back.
func TestReceivesDoNotWaitForAnAnswer(t *testing.T) {
	for _, name := range []string{"shm", "tcp", "verbs"} {
		t.Run(name, func(t *testing.T) {
			l := newLink(t, personalities()[name], Config{})
			a, b := l.dial(t)
			for range 20 {
				_, err := a.Write([]byte("nobody reads this"))
				require.NoError(t, err)
				require.Eventually(t, func() bool {
					l.eb.enter()
					defer l.eb.leave()
					return len(l.eb.core.recvs) == 0 && l.eb.state.Load() == armed
				}, 10*time.Second, 100*time.Microsecond)
			}
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
			l.close(t)
		})
	}
}

// TestSleeperIsLeftAlone: who parks without having polled does not wake the
// goroutine that sleeps on the wait fd, only to have it go to sleep again.
func TestSleeperIsLeftAlone(t *testing.T) {
	l, a, b, end := countedLink(t, personalities()["verbs"], Config{Spin: -1})
	echoed := make(chan error, 1)
	go func() { echoed <- echo(b, 64) }()
	// A sleep is left alone for a short time only, which may pass on a busy machine.
	alone := func() bool {
		const trips = 20
		before := end.wakes.Load()
		for range trips {
			require.NoError(t, roundTrip(a, make([]byte, 64)))
		}
		return end.wakes.Load()-before < trips/2
	}
	left := false
	for i := 0; i < 50 && !left; i++ {
		left = alone()
	}
	assert.True(t, left)
	require.NoError(t, a.Close())
	require.NoError(t, <-echoed)
	require.NoError(t, b.Close())
	l.close(t)
}
