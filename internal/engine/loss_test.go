package engine

import (
	"errors"
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

// TestHeartbeats: heartbeats, with and without traffic, end nothing for a long time, and send nothing over the fabric.
func TestHeartbeats(t *testing.T) {
	synced(func(t *testing.T, p simfabric.Personality) {
		b := newBeating(t, p)
		time.Sleep(b.dead)
		sent := b.ea.Stats().FramesSent + b.eb.Stats().FramesSent
		time.Sleep(time.Duration(race.Fewer(10)) * time.Minute)
		assert.Equal(t, sent, b.ea.Stats().FramesSent+b.eb.Stats().FramesSent)
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

// TestStolenReceives: an endpoint to which the fabric brings nothing, although its peer has sent something, takes no
// more peers, whether there are others of which nothing is known, or newcomers, which are not ended by that.
// It is not the peer's own endpoint that is mute.
func TestStolenReceives(t *testing.T) {
	synced(func(t *testing.T, p simfabric.Personality) {
		b := newBeating(t, p)
		var others []*Peer
		if !p.PerPeer {
			for _, unproven := range []bool{false, true} {
				other, err := b.eb.NewPeer(PeerConfig{Unproven: unproven})
				require.NoError(t, err)
				others = append(others, other)
			}
		}
		b.ends[1].receives.Store(true)
		var traffic sync.WaitGroup
		traffic.Go(func() { // uses up those that are posted
			for writeN(b.conn[0], 1) == nil {
				time.Sleep(time.Millisecond)
			}
		})
		assert.LessOrEqual(t, b.reset(t, b.conn[0]), b.late())
		time.Sleep(b.late())
		assert.False(t, b.eb.Takes())
		locked(b.ea, func() { assert.False(t, b.ea.core.mute) })
		for _, other := range others {
			assert.False(t, other.lost())
		}
		traffic.Wait()
	})(t)
}

// TestLostMessage: a message that does not come ends its peer within DeadAfter, if nothing else comes;
// with intervals between heartbeats of all lengths, wherever between two of them it was sent, and whatever
// was lost before it. The endpoint takes further peers.
func TestLostMessage(t *testing.T) {
	for _, preset := range simfabric.Presets() {
		t.Run(preset.Name, func(t *testing.T) {
			for i := range 60 {
				dead := []time.Duration{time.Second, 5 * time.Second, DefaultDeadAfter}[i%3]
				every := dead/3 - time.Duration(i/10)*dead/100
				synctest.Test(t, func(t *testing.T) {
					p := preset.Personality
					if !p.SameHost { // where all frames are injected
						p.InjectSize = 64
					}
					b := newBeatingEvery(t, p, dead, every)
					time.Sleep(4*every + every*time.Duration(i%10)/10)
					start, lossy := time.Now(), i%2
					b.ends[lossy].injects.Store(1)
					require.NoError(t, writeN(b.conn[lossy], 1))
					b.untilLost()
					assert.LessOrEqual(t, time.Since(start), dead+step, "heartbeats every %v", every)
					assert.ErrorIs(t, []*Peer{b.b, b.a}[lossy].why(), ErrMissing)
					assert.True(t, p.PerPeer || []*Endpoint{b.ea, b.eb}[lossy].Takes())
				})
			}
		})
	}
}

// TestLosses: a fabric silently loses one message in 10,000, a frame or a write, while others of the same
// peer get through. Nobody waits for ever for what was lost: once the others make a pause, the peer is lost
// within DeadAfter, and the conns say why.
func TestLosses(t *testing.T) {
	synced(func(t *testing.T, p simfabric.Personality) {
		b := newBeating(t, p)
		var conns [4][2]*Conn
		for i := range conns {
			conns[i][0], conns[i][1] = b.dial(t)
		}
		b.net.Lose(1 / float64(race.Fewer(10_000)))
		apart := 10 * time.Millisecond / time.Duration(race.Fewer(10))
		var traffic sync.WaitGroup
		var pause atomic.Bool
		var resets [len(conns)][2]error
		for i, ends := range conns {
			size := []int{1, 64, 20_000, 300_000}[i]
			for side, c := range ends {
				traffic.Go(func() { resets[i][side] = pingPong(c, size, apart, side == 0, &pause) })
			}
		}
		for b.net.Stats().Lost == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		b.net.Lose(0)
		time.Sleep(b.dead)
		pause.Store(true)
		assert.LessOrEqual(t, b.untilLost(), b.dead+2*choreTime+step, "the last messages give rings back")
		b.beat() // a control connection tells the other side at once
		traffic.Wait()
		errs := []error{b.a.why(), b.b.why()}
		for i, ends := range resets {
			for side, err := range ends {
				assert.ErrorIs(t, err, syscall.ECONNRESET)
				assert.Equal(t, errs[side].Error(), conns[i][side].Lost().Error(), "it says why")
			}
		}
		assert.ErrorContains(t, errors.Join(errs...), ErrMissing.Error())
	})(t)
}

// bare runs f with two endpoints on virtual time, which get heartbeats by hand. Nothing moves by itself.
func bare(t *testing.T, p simfabric.Personality, f func(l *link)) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, simfabric.Config{Seed: 1, Personality: p}, Config{Spin: -1})
		settle()
		f(l)
		l.end(t)
	})
}

// claims brings the second side a heartbeat after a while, which says how much the first has sent.
func (l *link) claims(wait time.Duration, sent uint32) {
	time.Sleep(wait)
	l.b.p.tally.told.Store(sent)
	l.eb.beat(l.b.p)
}

// settle returns when the frames that end a path check have come, and the pollers are done with them.
func settle() {
	time.Sleep(choreTime)
	synctest.Wait()
}

// TestStoppedWhileMissing: a heartbeat tells of a message that is still to come, and then one of the two
// processes is stopped for a while. The message is not lost: it gets some more time afterwards.
func TestStoppedWhileMissing(t *testing.T) {
	bare(t, simfabric.TCP(), func(l *link) {
		p := l.b.p
		for _, d := range []time.Duration{1, 3, 10, 7, 3} { // stopped; DeadAfter is 15 s
			l.claims(d*time.Second, p.tally.came+1)
			assert.NoError(t, p.err)
		}
		l.claims(2*time.Second, p.tally.came+1)
		assert.ErrorIs(t, p.err, ErrMissing)
	})
}

// TestOvertaken: heartbeats that overtake messages end nobody, however often they do, as long as the messages come.
func TestOvertaken(t *testing.T) {
	bare(t, simfabric.TCP(), func(l *link) {
		p := l.b.p
		a, b := l.dial(t)
		for i := range 200 {
			l.claims(time.Second, l.a.Sent()+uint32(i)+1) // so that there are always some to come
			if i%2 > 0 {                                  // now and then none comes between two heartbeats
				carry(t, a, b, 1)
			}
		}
		assert.NoError(t, p.err)
	})
}

// TestUndrained: what lies in the completion queue is not lost, however long nobody has taken it in.
func TestUndrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim := simfabric.Config{Seed: 1, Personality: simfabric.TCP()}
		l, ends := newLinkOn(t, sim, Config{Spin: -1}, func(e fabric.Endpoint) *deafEnd { return &deafEnd{Endpoint: e} })
		a, _ := l.dial(t)
		p := l.b.p
		settle()
		ends[1].deaf.Store(true)
		require.NoError(t, writeN(a, 1))
		for range 3 {
			time.Sleep(5 * time.Second) // DeadAfter is 15 s
			p.tally.told.Store(l.a.Sent())
			if p.tally.missing > 0 {
				ends[1].deaf.Store(false)
			}
			l.eb.beat(p)
		}
		require.False(t, ends[1].deaf.Load(), "the message was missed")
		assert.NoError(t, p.err)
		l.end(t)
	})
}

// deafEnd is an endpoint whose queue seems empty while deaf is set.
type deafEnd struct {
	fabric.Endpoint
	deaf atomic.Bool
}

func (e *deafEnd) Exchange(ops []fabric.Op, done []fabric.Completion) (posted, reaped int, err error) {
	if e.deaf.Load() {
		done = nil
	}
	return e.Endpoint.Exchange(ops, done)
}

// TestClaims: a peer that claims to have sent more than it has ends itself alone. One that claims less is believed.
func TestClaims(t *testing.T) {
	bare(t, simfabric.TCP(), func(l *link) {
		p := l.b.p
		for _, claim := range []uint32{0, p.tally.came - 1, p.tally.came, p.tally.came + 1<<31} { // the last one is less, modulo 2^32
			for range 10 {
				l.claims(4*time.Second, claim)
			}
			assert.NoError(t, p.err)
		}
		other, err := l.eb.NewPeer(PeerConfig{})
		require.NoError(t, err)
		for range 3 {
			l.claims(5*time.Second, p.tally.came+1)
		}
		assert.ErrorIs(t, p.err, ErrMissing)
		assert.False(t, other.lost())
		assert.False(t, l.eb.Takes(), "nobody else has been heard for as long")
		locked(l.eb, func() { l.eb.core.heard = true }) // something comes from the other one
		l.eb.beat(other.p)
		assert.True(t, l.eb.Takes())
	})
}

// TestStolenReceivesAndNewcomers: on an endpoint without peers, newcomers that are not heard are
// the sign that nothing arrives, but only once DeadAfter has passed since anything was last heard.
func TestStolenReceivesAndNewcomers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBeating(t, simfabric.TCP())
		b.a.Lost(errGoodbye)
		b.b.Lost(errGoodbye)
		comes := func(saysWhere bool) {
			newcomer, err := b.eb.NewPeer(PeerConfig{Unproven: true})
			require.NoError(t, err)
			if saysWhere {
				require.NoError(t, newcomer.Connect(t.Context(), b.a.Local()))
			}
			newcomer.Lost(errGoodbye)
		}
		comes(true)
		assert.True(t, b.eb.Takes())
		time.Sleep(b.dead + time.Second)
		comes(false)
		assert.True(t, b.eb.Takes())
		comes(true)
		assert.False(t, b.eb.Takes())
	})
}

// pingPong sends messages of one size to and fro, that long apart, until an error. While pause is set it begins none.
func pingPong(c *Conn, size int, apart time.Duration, first bool, pause *atomic.Bool) (err error) {
	for ; err == nil; first = true {
		if first && !pause.Load() {
			time.Sleep(apart)
			if err = writeN(c, size); err != nil {
				break
			}
		}
		err = readN(c, size)
	}
	return err
}
