package engine

import (
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
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
	if i := slices.IndexFunc(ops, isRecv); i >= 0 && e.receives.Load() { // it is taken in the next call
		ops = ops[:i]
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
	return newBeatingEvery(t, p, 5*time.Second, 5*time.Second/3)
}

func newBeatingEvery(t *testing.T, p simfabric.Personality, dead, every time.Duration) *beating {
	t.Helper()
	b := &beating{dead: dead, over: make(chan struct{})}
	b.link, b.ends = newLinkOn(t, simfabric.Config{Seed: 1, Personality: p}, Config{Spin: -1, DeadAfter: b.dead}, newStolen)
	b.conn[0], b.conn[1] = b.dial(t)
	b.echo(t)
	go repeat(b.over, every, func() {
		if !b.stop.Load() {
			b.beat()
		}
	})
	t.Cleanup(func() {
		close(b.over)
		b.end(t)
	})
	return b
}

// repeat calls f that often until over is closed.
func repeat(over <-chan struct{}, every time.Duration, f func()) {
	for {
		select {
		case <-over:
			return
		case <-time.After(every):
			f()
		}
	}
}

// beat does what a control connection does: it tells each side what the other has sent, or that the other has given it up.
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
	noRead(t, c, syscall.ECONNRESET)
	return time.Since(start)
}

// late is when both sides know of a loss at the latest. A side that has not noticed it is told by beat.
func (b *beating) late() time.Duration { return b.dead + b.dead/3 }

func synced(f func(t *testing.T, p simfabric.Personality)) func(t *testing.T) {
	return func(t *testing.T) {
		for _, preset := range simfabric.Presets() {
			onVirtualTime(t, preset.Name, func(t *testing.T) { f(t, preset.Personality) })
		}
	}
}

// TestGap: a message of one conn is lost while another conn goes on. What follows shows that, and the peer ends soon.
func TestGap(t *testing.T) {
	synced(func(t *testing.T, p simfabric.Personality) {
		for _, size := range []int{1, 20_000} { // frames, and writes to a ring; the other conn's are so, too
			b := newBeating(t, p)
			if b.a.p.rule == byDeliver {
				continue // what follows a write may come long before its announcement
			}
			x, y := b.dial(t)
			var traffic sync.WaitGroup
			var pause atomic.Bool
			for side, c := range []*Conn{x, y} {
				traffic.Go(func() { _ = pingPong(c, size, time.Millisecond, side == 0, &pause) })
			}
			traffic.Go(func() { _, _ = io.Copy(io.Discard, b.conn[1]) })
			for range 10 {
				mustWrite(t, b.conn[0], make([]byte, size))
				time.Sleep(10 * time.Millisecond)
			}
			p := b.b.p
			locked(b.eb, func() {
				s := b.conn[1].stream
				s.rcvNxt-- // as if a byte before had not come
				s.finPos, s.recv = s.rcvNxt+1, recvFin
			})
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
		writes := s.inLease.writes
		for name, have := range map[string]func(){
			"a frame":                    func() { s.held = []heldFrame{{pos: s.rcvNxt + 5}} },
			"a Fin":                      func() { s.recv = recvFin },
			"a write that has landed":    func() { s.inLease.slot(s.inLease.seq + 1).landed = true },
			"a write that was announced": func() { s.inLease.slot(s.inLease.seq).announced = true },
			"a write to a second ring":   func() { s.nextLease = &inLease{}; s.nextLease.writes[3].landed = true },
		} {
			have()
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
			s.held, s.recv, s.inLease.writes, s.nextLease = nil, recvOpen, writes, nil
			assert.False(t, s.hasGap(), name)
			assert.NoError(t, s.p.loss(), "it has come since")
			s.gap = gap{}
		}
	})
}
