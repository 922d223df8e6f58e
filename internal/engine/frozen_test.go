package engine

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
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
)

// TestManyFrozen: many stopped processes among an endpoint's peers do not hold up others, whatever waits to be sent to them.
func TestManyFrozen(t *testing.T) {
	holding := simfabric.TCP()
	holding.RxDepth, holding.TxDepth = 8192, 4096
	holding.Socket, holding.WeakCompletion = 64, false // 64 bytes are less than a frame
	for name, test := range map[string]struct {
		sim         simfabric.Personality
		frozen, all int
	}{
		"sends complete":    {simfabric.TCP(), 26, 27},
		"no send completes": {holding, 90, 96},
	} {
		onVirtualTime(t, name, func(t *testing.T) { testManyFrozen(t, test.sim, test.frozen, test.all) })
	}
}

func testManyFrozen(t *testing.T, sim simfabric.Personality, frozen, all int) {
	s := newStar(t, simfabric.Config{Seed: 1, Personality: sim}, Config{Spin: -1, DeadAfter: time.Hour}, all)
	defer s.close(t)
	a, b := s.dial(t, frozen)
	healthy(t, a, b)
	conns, each := []*Conn{a, b}, make([][]*Conn, frozen)
	for spoke := range frozen {
		outer, inner := s.dials(t, spoke, max(1, 64>>spoke))
		conns, each[spoke] = append(append(conns, outer...), inner...), inner
	}
	s.quiet()
	for spoke := range frozen {
		s.net.Freeze(s.spokes[spoke].fab)
	}
	var wg sync.WaitGroup
	for spoke := range frozen {
		for _, c := range each[spoke] {
			wg.Go(func() {
				for n, err := 0, error(nil); n < 40 && err == nil; n++ {
					_, err = c.Write(make([]byte, 100))
				}
			})
		}
		s.quiet()
	}
	defer func() {
		for spoke := range frozen {
			s.net.Thaw(s.spokes[spoke].fab)
		}
		giveUp(conns...)
		wg.Wait()
	}()
	healthy(t, a, b)
}

// miser is the endpoint of a process that never lets its peer have more than one slot.
type miser struct {
	fabric.Endpoint
	p *peer // nil: it is still generous
	c uint32
}

func (m *miser) Exchange(ops []fabric.Op, done []fabric.Completion) (int, int, error) {
	for _, op := range ops {
		if m.p != nil && (op.Kind == fabric.Send || op.Kind == fabric.Inject) {
			m.c = max(m.c, m.p.seen+1)
			binary.LittleEndian.PutUint32(op.Buf[20:], m.c)
		}
	}
	return m.Endpoint.Exchange(ops, done)
}

// TestMiser: a peer that answers heartbeats but grants single slots, too few for data, does not hold send slots for ever.
func TestMiser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const dead = 5 * time.Second
		sim, cfg := simfabric.Config{Seed: 1, Personality: simfabric.TCP()}, Config{Spin: -1, DeadAfter: dead, PeerSlots: 4}
		l, ends := newLinkOn(t, sim, cfg, func(e fabric.Endpoint) *miser { return &miser{Endpoint: e} })
		m := ends[0]
		_, in := l.dials(t, 40)
		time.Sleep(time.Second)
		locked(l.ea, func() { m.p, m.c = l.a.p, l.a.p.advertised })
		for _, b := range in {
			for range 4 {
				require.NoError(t, b.SetWriteDeadline(time.Now().Add(time.Millisecond)))
				_, _ = b.Write(make([]byte, 100))
			}
		}
		for i := range 12 {
			time.Sleep(dead / 3)
			l.a.Heartbeat(l.b.Sent())
			l.b.Heartbeat(l.a.Sent())
			if i == 3 {
				for _, b := range in {
					go func() { _ = b.Close() }()
				}
			}
		}
		locked(l.eb, func() {
			assert.ErrorIs(t, l.b.p.err, ErrStarved)
			assert.Zero(t, l.eb.core.pends)
			assert.Equal(t, l.eb.core.tx.Len(), l.eb.core.tx.Free())
		})
		l.end(t)
	})
}

// cancelling is an endpoint on which strangers, while they are active, cancel every receive that is
// posted, as happens when connections end in the middle of a message.
type cancelling struct {
	fabric.Endpoint
	mu        sync.Mutex
	strangers atomic.Bool
	held      []uint32 // tags of receives that are to be cancelled
}

func (e *cancelling) Exchange(ops []fabric.Op, done []fabric.Completion) (posted, reaped int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.held) > 0 && len(done) > 0 {
		for ; reaped < min(len(done), len(e.held)); reaped++ {
			done[reaped] = fabric.Completion{Kind: fabric.Recv, Tag: e.held[reaped], Err: errInjected}
		}
		e.held = e.held[reaped:]
		return 0, reaped, nil
	}
	if e.strangers.Load() && slices.ContainsFunc(ops, isRecv) {
		for posted < len(ops) && isRecv(ops[posted]) {
			e.held = append(e.held, ops[posted].Tag)
			posted++
		}
		if posted > 0 { // a provider signals its wait object for these, too
			w := e.Waiter()
			w.Bell().Wake()
			w.Watcher().Wake()
		}
		return posted, 0, nil
	}
	return e.Endpoint.Exchange(ops, done)
}

// TestCancelledReceives: strangers that cancel receives, again and again, end neither the endpoint nor its conns, and cost
// no more than a bounded number of new receives a second. The conns end only if nothing else has arrived for DeadAfter.
func TestCancelledReceives(t *testing.T) {
	for name, forever := range map[string]bool{"for a while": false, "for ever": true} {
		onVirtualTime(t, name, func(t *testing.T) {
			sim, cfg := simfabric.Config{Seed: 1, Personality: simfabric.TCP()}, Config{Spin: -1, DeadAfter: 5 * time.Second}
			l, ends := newLinkOn(t, sim, cfg, func(e fabric.Endpoint) *cancelling { return &cancelling{Endpoint: e} })
			c, s := l.dial(t)
			carry(t, c, s, 1)
			ends[1].strangers.Store(true)
			const second = 4
			for range second * 2 { // each message uses up a receive, and strangers cancel the one posted for it
				carry(t, c, s, 1)
				time.Sleep(time.Second / 2)
			}
			posted := l.eb.Stats().CQErrors
			assert.NotZero(t, posted)
			assert.LessOrEqual(t, posted, uint64((second+2)*l.eb.core.rx.Len()))
			if forever {
				time.Sleep(2 * cfg.DeadAfter)
				noRead(t, s, syscall.ECONNRESET)
			} else {
				ends[1].strangers.Store(false)
				time.Sleep(2 * choreTime)
				for range 2 * l.eb.core.rx.Len() { // all receives are there again
					carry(t, c, s, 1)
				}
			}
			l.end(t)
		})
	}
}

// processTime returns the processor time that the process has used.
func processTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestWaitersSleepWhileACallHangs: goroutines that wait for an endpoint use no processor while one
// of its calls hangs. The simulated fabric's calls use none either while they hang.
func TestWaitersSleepWhileACallHangs(t *testing.T) {
	for name, procs := range map[string]int{"one core": 1, "two cores": 2} {
		for what, spin := range map[string]time.Duration{"polling": 0, "parking": -1} {
			t.Run(name+"/"+what, func(t *testing.T) {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
				l := newLink(t, simfabric.Config{Personality: simfabric.Shm()}, Config{Spin: spin})
				var wg sync.WaitGroup
				conns, others := l.dials(t, 8)
				l.net.Hang(l.ea.fab)
				for _, c := range conns {
					wg.Go(func() { assert.ErrorIs(t, readN(c, 1), syscall.ECONNRESET) })
				}
				time.Sleep(100 * time.Millisecond) // by now all wait or hang
				defer debug.SetGCPercent(debug.SetGCPercent(-1))
				debug.FreeOSMemory() // garbage of earlier tests is collected now, and not while we watch
				const watched = time.Second
				before := processTime(t)
				time.Sleep(watched)
				assert.Less(t, processTime(t)-before, watched/20)
				call(t, func() error { l.a.Lost(io.ErrUnexpectedEOF); return nil }, nil)
				wg.Wait()
				resetConns(t, slices.Concat(conns, others)...)
				abandoned(t, l)
			})
		}
	}
}

// TestEndingCallsDoNotHang: a call that ends something ends, though what it sends hangs in the library.
func TestEndingCallsDoNotHang(t *testing.T) {
	for name, f := range map[string]func(c *Conn) error{
		"Close": (*Conn).Close, "CloseWrite": (*Conn).CloseWrite,
		"CloseRead": (*Conn).CloseRead,
		"reset":     func(c *Conn) error { _ = c.SetLinger(0); return c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLink(t, simfabric.Config{Personality: simfabric.Shm()}, Config{Spin: -1})
			a, b := l.dial(t)
			for range 60 { // so that CloseRead has credit to send
				mustWrite(t, b, make([]byte, 1000))
			}
			time.Sleep(50 * time.Millisecond)
			l.net.Hang(l.ea.fab)
			start := time.Now()
			select {
			case err := <-begin(func() error { return f(a) }):
				t.Log(time.Since(start), err)
			case <-time.After(3 * time.Second):
				t.Error("still waits after 3 s")
			}
			l.a.Lost(io.ErrUnexpectedEOF)
			l.b.Lost(io.ErrUnexpectedEOF)
			_, _ = a.Close(), b.Close()
		})
	}
}

// hanging makes calls into the fabric hang on one side of a link, while one goroutine reads from a
// conn of that side and another writes: one of them holds the endpoint's lock, or owns the queue.
// It returns the link, the conn, and what the two calls end with.
func hanging(t *testing.T) (l *link, a *Conn, read, written <-chan error) {
	l = newLink(t, simfabric.Config{Personality: simfabric.Shm()}, Config{})
	a, _ = l.dial(t)
	l.net.Hang(l.ea.fab)
	read = begin(func() error { return readN(a, 1) })
	written = begin(func() (err error) {
		for err == nil {
			err = writeN(a, 100)
		}
		return err
	})
	time.Sleep(20 * time.Millisecond) // whoever gets there first: both must end
	return l, a, read, written
}

// soon is how long a call that promises to end may take.
const soon = 2 * time.Second

// endsSoon checks that a call ends soon, with one of the errors.
func endsSoon(t *testing.T, ended <-chan error, want ...error) {
	t.Helper()
	select {
	case err := <-ended:
		is := func(w error) bool { return errors.Is(err, w) }
		assert.True(t, slices.ContainsFunc(want, is), "ended with another error: %v, want one of %v", err, want)
	case <-time.After(soon):
		t.Fatal("the call hangs")
	}
}

// call runs f, which must end soon.
func call(t *testing.T, f func() error, want ...error) {
	t.Helper()
	endsSoon(t, begin(f), want...)
}

// abandoned closes a link one side of which was abandoned.
func abandoned(t *testing.T, l *link) {
	t.Helper()
	assert.Equal(t, uint64(1), l.ea.Stats().Abandoned)
	assert.Zero(t, l.eb.Stats().Abandoned)
	call(t, func() error { l.b.Lost(io.ErrUnexpectedEOF); return nil }, nil)
	call(t, l.ea.Close, nil)
	call(t, l.eb.Close, nil)
	assert.Zero(t, l.ea.core.cfg.Budget.Stats().Used, "memory budget")
}

func TestHangEndsWithThePeer(t *testing.T) {
	l, a, read, written := hanging(t)
	call(t, func() error { l.a.Lost(io.ErrUnexpectedEOF); return nil }, nil)
	endsSoon(t, read, syscall.ECONNRESET)
	endsSoon(t, written, syscall.ECONNRESET)
	assert.ErrorIs(t, writeN(a, 1), syscall.ECONNRESET)
	call(t, a.Close, nil)
	abandoned(t, l)
}

func TestHangEndsWithTheDeadline(t *testing.T) {
	for name, deadline := range map[string]time.Duration{"to come": 50 * time.Millisecond, "past": -1} {
		t.Run(name, func(t *testing.T) {
			l, a, read, written := hanging(t)
			call(t, func() error { return a.SetReadDeadline(time.Now().Add(deadline)) }, nil)
			endsSoon(t, read, os.ErrDeadlineExceeded, syscall.ECONNRESET)
			endsSoon(t, written, syscall.ECONNRESET)
			call(t, a.Close, nil)
			abandoned(t, l)
		})
	}
}

func TestHangEndsWithClose(t *testing.T) {
	l, a, read, written := hanging(t)
	call(t, func() error {
		a.e.lock() // which a call that hangs may hold
		a.linger = -1
		a.e.mu.Unlock()
		return a.Close()
	}, nil)
	endsSoon(t, read, os.ErrClosed, syscall.ECONNRESET, errClosed)
	endsSoon(t, written, syscall.ECONNRESET, errClosed)
	abandoned(t, l)
}

// TestHangInClose: Close ends even if it is the first call into the fabric since the fabric hangs.
func TestHangInClose(t *testing.T) {
	for _, linger := range []int{0, 1} {
		l := newLink(t, simfabric.Config{Personality: simfabric.Shm()}, Config{})
		a, _ := l.dial(t)
		require.NoError(t, a.SetLinger(linger))
		time.Sleep(50 * time.Millisecond) // nobody polls any more
		l.net.Hang(l.ea.fab)
		select {
		case err := <-begin(a.Close):
			t.Log(err) // the peer may have everything or not: nobody can tell
		case <-time.After(time.Duration(linger)*time.Second + soon):
			t.Fatal("Close hangs")
		}
		abandoned(t, l)
	}
}

// TestRescueSparesTheHealthy: no call hangs, so nothing is abandoned, however often somebody looks.
func TestRescueSparesTheHealthy(t *testing.T) {
	l, a, b := newConns(t, simfabric.Config{Personality: simfabric.Shm()}, Config{})
	ended := begin(func() error { return echo(b, 64) })
	buf := make([]byte, 64)
	for range 200 {
		require.NoError(t, roundTrip(a, buf))
		require.False(t, l.ea.poller.Rescue())
		require.NoError(t, a.SetReadDeadline(time.Now().Add(-1)))
		require.NoError(t, a.SetReadDeadline(time.Time{}))
	}
	require.NoError(t, a.Close())
	require.NoError(t, <-ended)
	require.NoError(t, b.Close())
}
