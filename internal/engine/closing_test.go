package engine

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/metrics"
)

// slowPath is the receiving end of a path of rate bytes a second, which takes from the sender at once, as sockets do.
type slowPath struct {
	fabric.Endpoint
	mu    sync.Mutex
	rate  int
	queue []fabric.Completion
	next  time.Time // when the first of them arrives
}

func (p *slowPath) set(rate int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate, p.next = rate, time.Now()
}

func (p *slowPath) Exchange(ops []fabric.Op, done []fabric.Completion) (posted, reaped int, err error) {
	if len(done) == 0 {
		return p.Endpoint.Exchange(ops, nil)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	posted, n, err := p.Endpoint.Exchange(ops, done)
	for _, d := range done[:n] {
		if d.Kind == fabric.Recv || d.Kind == fabric.RemoteWrite {
			p.queue = append(p.queue, d)
		} else { // the end of its own operations
			done[reaped] = d
			reaped++
		}
	}
	for now := time.Now(); reaped < len(done) && len(p.queue) > 0 && p.rate > 0 && !p.next.After(now); reaped++ {
		d := p.queue[0]
		done[reaped], p.queue = d, p.queue[1:]
		n := d.Len
		if d.Kind == fabric.RemoteWrite {
			n = stepSize // any length would do
		}
		p.next = now.Add(time.Duration(n) * time.Second / time.Duration(p.rate))
	}
	return posted, reaped, err
}

// slowPathLink is a link whose path to the listening side is slow.
func slowPathLink(t *testing.T, deadAfter time.Duration) (l *link, path *slowPath) {
	p := simfabric.RuleCQData() // the target sees each write
	p.NoWait = true             // arrivals come with time, and nothing signals them
	sim, cfg := simfabric.Config{Seed: 1, Personality: p}, Config{DeadAfter: deadAfter, Spin: -1}
	l, ends := newLinkOn(t, sim, cfg, func(e fabric.Endpoint) *slowPath { return &slowPath{Endpoint: e, rate: 1 << 40} })
	return l, ends[1]
}

// TestCloseTellsOfLoss: when the conn is cut while Close waits, it fails if nobody knows whether the peer has everything.
func TestCloseTellsOfLoss(t *testing.T) {
	lose := func(l *link, _, _ *Conn) { l.a.Lost(syscall.EPIPE) }
	type step func(l *link, c, s *Conn)
	for name, tt := range map[string]struct {
		live   step // while the peer takes what is sent
		frozen step // while it takes nothing, before Close
		late   step // while Close waits
		want   error
	}{
		"the peer is lost":       {frozen: write, late: lose, want: syscall.ECONNRESET},
		"after CloseWrite":       {frozen: writeAll, late: lose, want: syscall.ECONNRESET},
		"nothing was written":    {late: lose},
		"it was lost before":     {frozen: func(l *link, c, s *Conn) { write(l, c, s); lose(l, c, s) }},
		"our endpoint closes":    {frozen: write, late: func(l *link, _, _ *Conn) { _ = l.ea.Close() }},
		"all was answered for":   {live: writeAll, late: lose},
		"the peer closed itself": {live: func(_ *link, _, s *Conn) { go s.Close() }, frozen: write, late: lose},
	} {
		onVirtualTime(t, name, func(t *testing.T) {
			l := newLink(t, simfabric.Config{Seed: 1, Personality: simfabric.TCP()}, Config{Spin: -1})
			c, s := l.dial(t)
			do := func(f step) {
				if f != nil {
					f(l, c, s)
				}
				synctest.Wait()
			}
			do(tt.live)
			l.net.Freeze(l.eb.fab)
			do(tt.frozen)
			require.NoError(t, c.SetLinger(60))
			closed := begin(c.Close)
			synctest.Wait()
			do(tt.late)
			assert.Equal(t, tt.want, <-closed)
			l.net.Thaw(l.eb.fab)
			l.b.Lost(syscall.EPIPE)
			_ = s.Close()
			l.close(t)
		})
	}
}

func write(_ *link, c, _ *Conn) { _, _ = c.Write([]byte("x")) }

func writeAll(l *link, c, s *Conn) {
	write(l, c, s)
	_ = c.CloseWrite()
}

// TestCloseOverSlowPath: the answer to a close comes after all data, so later than a peer may be silent. That ends nothing.
func TestCloseOverSlowPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, path := slowPathLink(t, time.Second)
		other, otherFar := l.dial(t)
		near, far := l.dial(t)
		var read int64
		var wg sync.WaitGroup
		wg.Go(func() { read, _ = io.Copy(io.Discard, netConn{far}) })
		path.set(430_000)
		mustWrite(t, near, make([]byte, 3<<20))
		began := time.Now()
		require.NoError(t, near.SetLinger(60))
		require.NoError(t, near.Close())
		assert.Greater(t, time.Since(began), time.Second, "the path is too fast for this test")
		wg.Wait()
		assert.EqualValues(t, 3<<20, read)
		closeConns(t, far)
		stillGood(t, l, other, otherFar)
	})
}

// TestUnansweredClose: a close that is not answered ends its own conn and no other.
func TestUnansweredClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, path := slowPathLink(t, time.Second)
		other, otherFar := l.dial(t)
		near, far := l.dial(t)
		path.set(0)
		require.NoError(t, near.SetLinger(2))
		require.Error(t, near.Close())
		time.Sleep(5 * time.Second)
		require.NoError(t, l.a.p.err)
		locked(l.ea, func() { require.Equal(t, sendAborted, near.stream.send) })
		path.set(1 << 40)
		_, err := far.Read(make([]byte, 1))
		require.True(t, errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET), "%v", err)
		closeConns(t, far)
		time.Sleep(2 * choreTime)
		locked(l.ea, func() { require.Zero(t, l.ea.core.lingering, "it was answered") })
		stillGood(t, l, other, otherFar)
	})
}

// answersOn moves a byte each way.
func answersOn(t *testing.T, a, b *Conn) {
	t.Helper()
	carry(t, a, b, 1)
	carry(t, b, a, 1)
}

// stillGood uses a conn, closes both ends at once, and then the link.
func stillGood(t *testing.T, l *link, a, b *Conn) {
	t.Helper()
	answersOn(t, a, b)
	closed := []<-chan error{begin(a.Close), begin(b.Close)}
	require.NoError(t, errors.Join(<-closed[0], <-closed[1]))
	l.close(t)
}

// TestUnansweredCloses: conns of a peer that answers no closes keep what they hold, and neither side can open more of them.
func TestUnansweredCloses(t *testing.T) {
	p, open, later := closesAlone(t)
	for id := uint32(1); id <= maxUnanswered+1; id++ {
		open(id).close()
	}
	later(0)
	later(DefaultDeadAfter)
	require.Zero(t, p.unanswered, "they have time")
	require.NotNil(t, open(1000))
	later(time.Second)
	require.Equal(t, maxUnanswered+1, p.unanswered)
	require.NoError(t, p.err, "it is not to blame for more than these")
	require.Nil(t, open(1001))
	_, err := p.open(1)
	require.ErrorIs(t, err, errUnanswered)
	p.streams[1].finAcked(true)
	later(0)
	require.NotNil(t, open(1001))
}

func TestClosing(t *testing.T) {
	l := newLink(t, simfabric.Config{Personality: simfabric.TCP()}, Config{})
	defer l.close(t)
	t.Run("half close", func(t *testing.T) {
		a, b := l.dial(t)
		mustWrite(t, a, []byte("request"))
		require.NoError(t, a.CloseWrite())
		require.ErrorIs(t, writeN(a, 1), syscall.EPIPE)
		got, err := io.ReadAll(onlyReader{b})
		require.NoError(t, err)
		require.Equal(t, "request", string(got))
		mustWrite(t, b, []byte("answer"))
		closeConns(t, b)
		got, err = io.ReadAll(onlyReader{a})
		require.NoError(t, err)
		require.Equal(t, "answer", string(got))
		closeConns(t, a)
		require.ErrorIs(t, a.Close(), net.ErrClosed)
		noRead(t, a, net.ErrClosed)
		require.ErrorIs(t, a.SetDeadline(time.Time{}), net.ErrClosed)
	})
	t.Run("writing to a closed peer", func(t *testing.T) {
		a, b := l.dial(t)
		closeConns(t, b)
		require.Eventually(t, func() bool { return errors.Is(writeN(a, 1), syscall.EPIPE) }, 5*time.Second, time.Millisecond)
		noRead(t, a, io.EOF)
		closeConns(t, a)
	})
	t.Run("linger 0 resets", func(t *testing.T) {
		a, b := l.dial(t)
		resetConns(t, b)
		noRead(t, a, syscall.ECONNRESET)
		closeConns(t, a)
	})
	t.Run("reset before Open has returned", func(t *testing.T) {
		for range 20 {
			opened := make(chan *Conn)
			go func() {
				c, err := l.a.Open(context.Background(), 7)
				assert.NoError(t, err)
				opened <- c
			}()
			b := <-l.accept
			l.ea.mu.Lock() // the answer and the reset arrive together, unless the answer is there already
			sent := l.eb.Stats().FramesSent
			resetConns(t, b)
			require.Eventually(t, func() bool { return l.eb.Stats().FramesSent > sent }, 5*time.Second, time.Millisecond)
			l.ea.mu.Unlock()
			a := <-opened
			require.NotNil(t, a)
			noRead(t, a, syscall.ECONNRESET)
			require.Error(t, writeN(a, 1))
			closeConns(t, a)
		}
	})
	t.Run("close read discards", func(t *testing.T) {
		a, b := l.dial(t)
		require.NoError(t, b.CloseRead())
		n, err := a.Write(make([]byte, 8<<20)) // more than any window
		require.NoError(t, err)
		require.Equal(t, 8<<20, n)
		noRead(t, b, io.EOF)
		closeConns(t, a, b)
	})
	t.Run("refused", func(t *testing.T) {
		_, err := l.a.Open(context.Background(), 8)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := l.a.Open(ctx, 7)
		require.ErrorIs(t, err, context.Canceled)
	})
	require.Eventually(t, func() bool {
		return l.ea.Stats().Conns == 0 && l.eb.Stats().Conns <= 1 // the cancelled one waits in the backlog
	}, 5*time.Second, time.Millisecond, "streams left behind")
}

// closesAlone returns a peer alone on a core, what takes an Open of its, and what moves the clock on and checks the closes.
func closesAlone(t *testing.T) (p *peer, open func(id uint32) *stream, later func(time.Duration)) {
	c, _ := lonelyCore(t)
	now := time.Unix(1e9, 0)
	c.clock = func() time.Time { return now }
	p, err := newPeerAlone(c, [16]byte{1}, PeerConfig{Accept: func(*Conn, uint32) (uint16, framing.ResetCode) { return anyPort, 0 }})
	require.NoError(t, err)
	open = func(id uint32) *stream {
		payload := [framing.OpenSize]byte{1}
		require.NoError(t, p.opened(&framing.Header{Type: framing.TypeOpen, Stream: id}, payload[:]))
		return p.streams[id]
	}
	later = func(d time.Duration) {
		now, c.at = now.Add(d), time.Time{}
		p.checkCloses()
	}
	return p, open, later
}

// TestResetsOfTheMoment: conns that were reset just now, and cannot be answered yet, keep nobody from opening more.
func TestResetsOfTheMoment(t *testing.T) {
	_, open, later := closesAlone(t)
	for id := uint32(1); id <= maxUnanswered+1; id++ {
		open(id).abort()
	}
	later(0)
	assert.NotNil(t, open(1000), "the peer has had no time to answer")
}

// TestUnansweredClosesOfATalker: a peer that keeps sending, but answers no close, cannot make us keep ever more windows.
func TestUnansweredClosesOfATalker(t *testing.T) {
	p, open, later := closesAlone(t)
	for id := uint32(1); id <= 2000; id++ {
		s := open(id)
		if s == nil {
			break
		}
		s.close()
		p.seen++ // it has sent a frame
		p.granted++
		later(DefaultDeadAfter / 3)
	}
	assert.Less(t, len(p.list), 2*maxUnanswered, "conns that were closed, of which each keeps %d bytes", p.list[0].heap.bytes())
}

// TestOpensEndWithTheEndpoint: many Opens whose context ends while the endpoint is being closed all return.
func TestOpensEndWithTheEndpoint(t *testing.T) {
	for range 40 {
		l := newLink(t, personalities()["tcp"], Config{Spin: -1})
		l.net.Kill(l.eb.fab, simfabric.DeathSilent) // nothing is answered
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() { _, _ = l.a.Open(ctx, 7) })
		}
		time.Sleep(3 * time.Millisecond)
		cancel()
		require.NoError(t, l.ea.Close())
		wg.Wait()
		require.NoError(t, l.eb.Close())
	}
}

// TestQuit: nothing more is posted to a peer after Quit, which may still write where it could until it has been told.
func TestQuit(t *testing.T) {
	for _, name := range []string{"tcp", "verbs", "saw", "cqdata"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const size = 128 << 10
			l, a, b := newConns(t, personalities()[name], Config{})
			write := func() {
				require.NoError(t, b.SetWriteDeadline(time.Now().Add(10*time.Second)))
				require.NoError(t, writeN(b, size))
			}
			write() // a has a landing ring now
			require.NoError(t, readN(a, size))

			blocked := begin(func() error { return writeN(a, 16<<20) })
			comesTrue(t, func() bool { return l.ea.Stats().Stalls != metrics.Stalls{} })
			write() // so that a's ring does not count as idle
			require.NoError(t, readN(a, size))
			l.a.Quit()
			posted := l.ea.Stats().Posted
			require.ErrorIs(t, <-blocked, syscall.ECONNRESET)
			l.eb.poller.Drain(100 * time.Millisecond) // what a has posted before
			writes := l.net.Stats().Writes
			write()
			comesTrue(t, func() bool {
				l.ea.poller.Drain(time.Millisecond)
				s := l.net.Stats()
				return s.Writes+s.BadRemote > writes
			})
			assert.Zero(t, l.net.Stats().BadRemote)
			giveUp(a, b)
			assert.Equal(t, posted, l.ea.Stats().Posted)
		})
	}
}
