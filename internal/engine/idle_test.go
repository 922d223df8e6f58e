package engine

import (
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/engine/progress"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// polled counts calls.
type polled struct {
	fabric.Endpoint
	calls *atomic.Int64
}

func (p polled) Exchange(ops []fabric.Op, done []fabric.Completion) (int, int, error) {
	p.calls.Add(1)
	return p.Endpoint.Exchange(ops, done)
}

// polledLink returns a link and the number of calls of both its ends.
func polledLink(t *testing.T, sim simfabric.Config) (l *link, calls *atomic.Int64) {
	calls = new(atomic.Int64)
	l, _ = newLinkOn(t, sim, Config{Spin: -1}, func(e fabric.Endpoint) polled { return polled{e, calls} })
	return l, calls
}

// callsIn waits for d, and returns how many calls there were.
func callsIn(d time.Duration, calls *atomic.Int64) int64 {
	before := calls.Load()
	time.Sleep(d)
	return calls.Load() - before
}

// TestIdlePolling: where there is nothing to wait on, an endpoint is polled seldom once nothing
// happens, with conns and without, and often again as soon as something does.
func TestIdlePolling(t *testing.T) {
	for _, preset := range simfabric.Presets() {
		if preset.NoWait && !preset.PerPeer {
			onVirtualTime(t, preset.Name, func(t *testing.T) {
				l, calls := polledLink(t, simfabric.Config{Seed: 5, Personality: preset.Personality})
				const sides, watch = 2, 10 * time.Second
				isSeldom := func(what string) {
					time.Sleep(2 * time.Second)
					got := callsIn(watch, calls)
					const chores = 10 // calls that become due with time
					assert.LessOrEqual(t, got, int64(sides*watch/pollIdle)+chores, what)
					assert.Positive(t, got, what)
				}
				isSeldom("no conn")
				start := time.Now()
				a, b := l.dial(t)
				assert.Less(t, time.Since(start), pollIdle+10*time.Millisecond, "dial")
				isSeldom("conns that nobody uses")
				start = time.Now()
				carry(t, a, b, 1)
				assert.LessOrEqual(t, time.Since(start), pollIdle, "the first message")
				start = time.Now()
				const trips = 10
				for range trips {
					carry(t, b, a, 1)
				}
				assert.LessOrEqual(t, time.Since(start), pollIdle+trips*4*pollEvery, "and those behind it")
				closeConns(t, a, b)
				l.end(t)
			})
		}
	}
}

// TestJoinPolling: a peer that comes up has its endpoint polled often, whatever was before, but not while it says nothing.
func TestJoinPolling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, calls := polledLink(t, simfabric.Config{Seed: 5, Personality: simfabric.Personality{NoWait: true}})
		time.Sleep(2 * time.Second)
		during := func(d time.Duration) int64 { return callsIn(d, calls) }
		p, err := l.ea.NewPeer(PeerConfig{})
		require.NoError(t, err)
		assert.GreaterOrEqual(t, during(2*pollEvery), int64(8))
		time.Sleep(time.Second)
		polls := during(time.Second)
		assert.GreaterOrEqual(t, polls, int64(time.Second/pollEvery)*9/10)
		assert.LessOrEqual(t, polls, int64(time.Second/pollEvery+time.Second/pollIdle)+10) // the other side's, and chores
		// Operations that it does not take do not change that.
		flying := func(n int) { locked(l.ea, func() { l.ea.core.flying += n }) }
		flying(1)
		assert.LessOrEqual(t, during(time.Second), int64(time.Second/pollEvery+time.Second/pollIdle)+10)
		flying(-1)
		// Once the peer is there, conns may come at once.
		p.Attached(Doorbell{}, Spill{})
		assert.GreaterOrEqual(t, during(50*pollEvery), int64(45))
		p.Lost(errors.New("gone"))
		time.Sleep(2 * time.Second)
		assert.LessOrEqual(t, during(time.Second), int64(2*time.Second/pollIdle)+10)
		l.close(t)
	})
}

const (
	pollEvery = progress.PollEvery
	pollIdle  = progress.PollIdle
)

// TestIdleIsLeftAlone: with a wait fd or a doorbell, nobody looks at an endpoint on which nothing
// happens, with conns or without. Without peers, nobody looks at an endpoint of any kind.
func TestIdleIsLeftAlone(t *testing.T) {
	synced(func(t *testing.T, p simfabric.Personality) {
		l, calls := polledLink(t, simfabric.Config{Seed: 5, Personality: p})
		isAlone := func(what string) {
			time.Sleep(time.Minute) // leases come back, too
			assert.Zero(t, callsIn(time.Minute, calls), what)
		}
		a, b := l.dial(t)
		carry(t, a, b, 300_000)
		if !p.NoWait || p.SameHost {
			isAlone("conns that nobody uses")
		}
		closeConns(t, a, b)
		l.a.Lost(errInjected)
		l.b.Lost(errInjected)
		isAlone("no peers")
		l.end(t)
	})(t)
}

// TestCloseExpectsTheNextConn: once the listening side of an endpoint with doorbells has closed a conn, it polls for
// the next one, if it has a core to spare, so that the dialling side need not ring. The dialling side does not poll.
func TestCloseExpectsTheNextConn(t *testing.T) {
	for name, procs := range map[string]int{"one core": 1, "all cores": runtime.GOMAXPROCS(0)} {
		t.Run(name, func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			l := newLink(t, personalities()["shm"], Config{Spin: 2 * time.Millisecond})
			defer l.close(t)
			isArmed := func(e *Endpoint) bool { return strings.HasPrefix(e.poller.String(), "armed") }
			asleep := func() bool { return progress.Spinners() == 0 && isArmed(l.ea) && isArmed(l.eb) }
			// settles reports that closing leaves the queue polled again and again, and not armed.
			settles := func(e *Endpoint, c *Conn) bool {
				comesTrue(t, func() bool { return asleep() && e.poller.Acquire() })
				polls := e.poller.Polls()
				e.poller.Release() // as a Read does
				c.e.poller.Settle(!c.dialed)
				comesTrue(t, asleep)
				return e.poller.Stats().Polls-polls >= 8
			}
			a, b := l.dial(t)
			require.False(t, settles(l.ea, a))
			polls := false
			for i := 0; i < 10 && !polls; i++ { // a timer may have armed the queue before
				polls = settles(l.eb, b)
			}
			require.Equal(t, min(procs, runtime.NumCPU()) > 1, polls)
			closeConns(t, a, b)
		})
	}
}
