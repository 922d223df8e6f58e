package engine

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/race"
)

// stolen is an endpoint on which strangers take and keep all receives that are posted while
// receives is set. It loses as many of its next injects as injects says.
type stolen struct {
	fabric.Endpoint
	receives atomic.Bool
	injects  atomic.Int32
}

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
	ends [2]*stolen
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
	n := 0
	var err error
	b.link, err = newLinkOf(simfabric.Config{Seed: 1, Personality: p}, Config{Spin: -1, DeadAfter: b.dead}, func(e fabric.Endpoint) fabric.Endpoint {
		b.ends[n] = &stolen{Endpoint: e}
		n++
		return b.ends[n-1]
	})
	require.NoError(t, err)
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
		require.NoError(t, b.ea.Close())
		require.NoError(t, b.eb.Close())
	})
	return b
}

// beat does what a control connection does: it tells each side that the other is alive, or has
// given it up.
func (l *link) beat() {
	switch {
	case l.a.lost():
		l.b.Lost(errGoodbye)
	case l.b.lost():
		l.a.Lost(errGoodbye)
	default:
		l.a.Heartbeat()
		l.b.Heartbeat()
	}
}

var errGoodbye = errors.New("goodbye")

func (p *Peer) lost() bool {
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	return p.p.err != nil
}

// untilLost waits until a side is lost.
func (l *link) untilLost() {
	for !l.a.lost() && !l.b.lost() {
		time.Sleep(10 * time.Millisecond)
	}
}

// echo sends a byte there and back.
func (b *beating) echo(t *testing.T) {
	t.Helper()
	for i := range b.conn {
		_, err := b.conn[i].Write([]byte("x"))
		require.NoError(t, err)
		_, err = io.ReadFull(b.conn[1-i], make([]byte, 1))
		require.NoError(t, err)
	}
}

// reset waits until a conn is reset, and returns how long that took.
func (b *beating) reset(t *testing.T, c *Conn) time.Duration {
	t.Helper()
	start := time.Now()
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	return time.Since(start)
}

// late is the time after which both sides know of silence at the latest. A side that has not
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

// TestHeartbeats: heartbeats go on for a long time, with and without traffic, and end nothing.
func TestHeartbeats(t *testing.T) {
	synced(func(t *testing.T, p simfabric.Personality) {
		b := newBeating(t, p)
		long := time.Duration(race.Fewer(10)) * time.Minute
		sent := b.ea.Stats().FramesSent
		time.Sleep(long)
		sent = b.ea.Stats().FramesSent - sent
		beats := uint64(long / (b.dead / 3))
		assert.Greater(t, sent, beats) // each is a Ping and a Pong
		assert.LessOrEqual(t, sent, 3*beats)
		for range race.Fewer(1000) {
			b.echo(t)
			time.Sleep(time.Second)
		}
		b.stop.Store(true) // as while the peer's process is stopped
		time.Sleep(10 * b.dead)
		b.stop.Store(false)
		time.Sleep(10 * b.dead)
		b.echo(t)
	})(t)
}

// TestStolenReceives: an endpoint that hears nothing while its peer is alive takes no more peers.
// The peer's own endpoint does.
func TestStolenReceives(t *testing.T) {
	synced(func(t *testing.T, p simfabric.Personality) {
		b := newBeating(t, p)
		b.ends[1].receives.Store(true)
		for range b.eb.core.rx.Len() { // use up those that are posted
			_, err := b.conn[0].Write([]byte("x"))
			require.NoError(t, err)
			time.Sleep(time.Millisecond)
		}
		assert.LessOrEqual(t, b.reset(t, b.conn[0]), b.late())
		assert.LessOrEqual(t, b.reset(t, b.conn[0]), b.late())
		time.Sleep(b.late())
		assert.Equal(t, RoomMute, b.eb.Room())
		assert.Equal(t, RoomOpen, b.ea.Room())
	})(t)
}

// TestLostMessage: a message that is waited for, and does not arrive, ends the peer.
func TestLostMessage(t *testing.T) {
	synced(func(t *testing.T, p simfabric.Personality) {
		if !p.SameHost { // where all frames are injected
			p.InjectSize = 64
		}
		b := newBeating(t, p)
		time.Sleep(b.late())
		b.ends[0].injects.Store(1)
		_, err := b.conn[0].Write([]byte("x"))
		require.NoError(t, err)
		assert.LessOrEqual(t, b.reset(t, b.conn[1]), 2*b.late())
		assert.Equal(t, RoomOpen, b.ea.Room())
	})(t)
}

// TestSilentPeer: only a peer that is alive but does not answer over the fabric is lost.
func TestSilentPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBeating(t, simfabric.TCP())
		fe, err := b.net.Open(simfabric.TCP().Provider, netip.Addr{})
		require.NoError(t, err)
		ec, err := NewEndpoint(fe, Config{Spin: -1, DeadAfter: b.dead})
		require.NoError(t, err)
		other := &link{net: b.net, ea: ec, eb: b.eb, accept: make(chan *Conn, 1)}
		require.NoError(t, other.connect(false))
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, err = other.a.Open(ctx, 7)
		require.NoError(t, err)
		c := <-other.accept
		b.net.Freeze(fe)
		var beats sync.WaitGroup
		beats.Go(func() {
			for !other.b.lost() {
				time.Sleep(b.dead / 3)
				other.b.Heartbeat()
			}
		})
		assert.LessOrEqual(t, b.reset(t, c), b.late())
		beats.Wait()
		b.echo(t)
		assert.Equal(t, RoomOpen, b.eb.Room())
		b.net.Thaw(fe)
		require.NoError(t, ec.Close())
	})
}

// TestSilentPeerAndNewcomers: when an endpoint loses its only peer, newcomers that are about to
// become its peers are not ended by that.
func TestSilentPeerAndNewcomers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBeating(t, simfabric.TCP())
		newcomer, err := b.eb.NewPeer(PeerConfig{Unproven: true})
		require.NoError(t, err)
		b.net.Freeze(b.ends[0].Endpoint)
		assert.LessOrEqual(t, b.reset(t, b.conn[1]), b.late())
		assert.Equal(t, RoomMute, b.eb.Room())
		assert.False(t, newcomer.lost())
		b.net.Thaw(b.ends[0].Endpoint)
	})
}

// TestStolenReceivesAndNewcomers: on an endpoint without peers, newcomers that are not heard are
// the sign that nothing arrives, but only once DeadAfter has passed since anything was last heard.
func TestStolenReceivesAndNewcomers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBeating(t, simfabric.TCP())
		b.a.Lost(errGoodbye)
		b.b.Lost(errGoodbye)
		comes := func() {
			newcomer, err := b.eb.NewPeer(PeerConfig{Unproven: true})
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			remote := b.a.Local()
			require.NoError(t, newcomer.Connect(ctx, remote))
			newcomer.Lost(errGoodbye)
		}
		comes()
		assert.Equal(t, RoomOpen, b.eb.Room())
		time.Sleep(b.dead + time.Second)
		stranger, err := b.eb.NewPeer(PeerConfig{Unproven: true})
		require.NoError(t, err)
		stranger.Lost(errGoodbye) // it has never said where it is
		assert.Equal(t, RoomOpen, b.eb.Room())
		comes()
		assert.Equal(t, RoomMute, b.eb.Room())
	})
}

// TestStolenReceivesBesideStopped: peers from which no heartbeats come do not vouch for the
// endpoint.
func TestStolenReceivesBesideStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBeating(t, simfabric.TCP())
		stopped, err := b.eb.NewPeer(PeerConfig{})
		require.NoError(t, err)
		b.net.Freeze(b.ends[0].Endpoint)
		assert.LessOrEqual(t, b.reset(t, b.conn[1]), b.late())
		assert.Equal(t, RoomMute, b.eb.Room())
		assert.False(t, stopped.lost())
		b.net.Thaw(b.ends[0].Endpoint)
	})
}
