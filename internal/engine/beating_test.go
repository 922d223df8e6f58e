package engine

import (
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// stolen is an endpoint on which strangers take and keep all receives that are posted while
// receives is set. It loses as many of its next injects as injects says.
type stolen struct {
	fabric.Endpoint
	receives atomic.Bool
	injects  atomic.Int32
}

func newStolen(e fabric.Endpoint) *stolen { return &stolen{Endpoint: e} }

func (e *stolen) Exchange(ops []fabric.Op, done []fabric.Completion) (posted, reaped int, err error) {
	for len(ops) > 0 && (ops[0].Kind == fabric.Recv && e.receives.Load() || ops[0].Kind == fabric.Inject && e.injects.Add(-1) >= 0) {
		ops = ops[1:]
		posted++
	}
	for i, op := range ops {
		if op.Kind == fabric.Recv && e.receives.Load() { // it is taken in the next call
			n, reaped, err := e.Endpoint.Exchange(ops[:i], done)
			return posted + n, reaped, err
		}
	}
	n, reaped, err := e.Endpoint.Exchange(ops, done)
	return posted + n, reaped, err
}

// beating is a link whose control connection brings heartbeats, unless stop is set.
type beating struct {
	*link
	ends []*stolen
	conn [2]*Conn
	dead time.Duration // DeadAfter
	stop atomic.Bool
	over chan struct{}
}

func newBeating(t *testing.T, p simfabric.Personality) *beating {
	t.Helper()
	const dead = 5 * time.Second
	return newBeatingEvery(t, p, dead, dead/3)
}

func newBeatingEvery(t *testing.T, p simfabric.Personality, dead, every time.Duration) *beating {
	t.Helper()
	b := &beating{dead: dead, over: make(chan struct{})}
	b.link, b.ends = newLinkOn(t, simfabric.Config{Seed: 1, Personality: p}, Config{Spin: -1, DeadAfter: b.dead}, newStolen)
	b.conn[0], b.conn[1] = b.dial(t)
	b.echo(t)
	go func() {
		for {
			select {
			case <-b.over:
				return
			case <-time.After(every):
			}
			if !b.stop.Load() {
				b.beat()
			}
		}
	}()
	t.Cleanup(func() {
		close(b.over)
		b.end(t)
	})
	return b
}

// beat does what a control connection does: it tells each side that the other is alive and what
// it has sent, or that the other has given it up.
func (l *link) beat() {
	switch {
	case l.a.lost():
		l.b.Lost(errGoodbye)
	case l.b.lost():
		l.a.Lost(errGoodbye)
	default:
		l.a.Heartbeat(l.b.Sent())
		l.b.Heartbeat(l.a.Sent())
	}
}

var errGoodbye = errors.New("goodbye")

func (p *Peer) lost() bool { return p.why() != nil }

// why is why the peer is lost, nil if it is not.
func (p *Peer) why() error {
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	return p.p.err
}

// step is how often untilLost looks.
const step = 10 * time.Millisecond

// untilLost waits until a side is lost, and returns how long that took.
func (l *link) untilLost() time.Duration {
	start := time.Now()
	for !l.a.lost() && !l.b.lost() {
		time.Sleep(step)
	}
	return time.Since(start)
}

// echo sends a byte there and back.
func (b *beating) echo(t *testing.T) {
	t.Helper()
	answersOn(t, b.conn[0], b.conn[1])
}

// reset waits until a conn is reset, and returns how long that took.
func (b *beating) reset(t *testing.T, c *Conn) time.Duration {
	t.Helper()
	start := time.Now()
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	return time.Since(start)
}

// late is the time after which both sides know of a loss at the latest. A side that has not
// noticed it is told by beat.
func (b *beating) late() time.Duration { return b.dead + b.dead/3 }

func synced(f func(t *testing.T, p simfabric.Personality)) func(t *testing.T) {
	return func(t *testing.T) {
		for _, preset := range simfabric.Presets() {
			t.Run(preset.Name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { f(t, preset.Personality) })
			})
		}
	}
}
