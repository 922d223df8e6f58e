package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// opErr wraps the engine's bare errors in net.Errors, which nettest asserts.
type opErr struct{ netConn }

func wrap(n int, err error) (int, error) {
	if err != nil && err != io.EOF {
		err = &net.OpError{Op: "x", Net: "rdma", Err: err}
	}
	return n, err
}

func (c opErr) Read(b []byte) (int, error)  { return wrap(c.netConn.Read(b)) }
func (c opErr) Write(b []byte) (int, error) { return wrap(c.netConn.Write(b)) }

// mustWrite writes data.
func mustWrite(t testing.TB, c *Conn, data []byte) {
	t.Helper()
	_, err := c.Write(data)
	require.NoError(t, err)
}

// mustRead reads n bytes.
func mustRead(t testing.TB, c *Conn, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	_, err := io.ReadFull(c, b)
	require.NoError(t, err)
	return b
}

// noRead asserts what Read fails with. io.EOF must not be wrapped.
func noRead(t testing.TB, c *Conn, want error) {
	t.Helper()
	_, err := c.Read(make([]byte, 1))
	require.True(t, err == want || want != io.EOF && errors.Is(err, want), "%v instead of %v", err, want)
}

// dials is dial for n conns.
func (l *link) dials(t testing.TB, n int) (near, far []*Conn) {
	t.Helper()
	for range n {
		a, b := l.dial(t)
		near, far = append(near, a), append(far, b)
	}
	return near, far
}

func TestNettest(t *testing.T) {
	for name, sim := range personalities() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				l := newLink(t, sim, Config{})
				a, b := l.dial(t)
				return opErr{netConn{a}}, opErr{netConn{b}}, func() {
					_ = a.Close()
					_ = b.Close()
					l.close(t)
				}, nil
			})
		})
	}
}

// TestStream: random writes of all sizes arrive, in both directions at once.
func TestStream(t *testing.T) {
	onEach(t, func(t *testing.T, _ *link, a, b *Conn) {
		var wg sync.WaitGroup
		for i, c := range []*Conn{a, b} {
			wg.Go(func() { sendPattern(t, c, uint64(i), 2<<20) })
			wg.Go(func() { checkPattern(t, c, uint64(1-i), 2<<20) })
		}
		wg.Wait()
		closeConns(t, a, b)
	})
}

// drawn returns bytes that are drawn at random.
func drawn(seed uint64, size int) []byte {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(seed)}).Read(b)
	return b
}

func sendPattern(t *testing.T, c *Conn, seed uint64, size int) {
	sizes := rand.New(rand.NewPCG(seed, 2))
	for data := drawn(seed, size); len(data) > 0; {
		b := data[:min(len(data), 1+sizes.IntN(1<<sizes.IntN(18)))]
		n, err := c.Write(b)
		clear(b) // the memory is the caller's again
		if !assert.NoError(t, err) || !assert.Equal(t, len(b), n) {
			return
		}
		data = data[n:]
	}
	assert.NoError(t, c.CloseWrite())
}

func checkPattern(t *testing.T, c *Conn, seed uint64, size int) {
	b := make([]byte, 100_000)
	for want := drawn(seed, size); ; {
		n, err := c.Read(b[:1+(size-len(want))%(len(b)-1)])
		if !assert.True(t, bytes.HasPrefix(want, b[:n]), "%d bytes before the end", len(want)) {
			return
		}
		if want = want[n:]; err != nil {
			assert.Equal(t, io.EOF, err)
			assert.Empty(t, want)
			return
		}
	}
}

func TestLargeDataGoesByWrite(t *testing.T) {
	onEachWithRings(t, func(t *testing.T, _ *link, a, b *Conn) {
		warmUp(t, a, b)
		before := b.Seen()
		const total = 16 << 20
		go func() {
			chunk := make([]byte, 64<<10)
			for range total / len(chunk) {
				_, _ = a.Write(chunk)
			}
			_ = a.Close()
		}()
		n, err := io.Copy(io.Discard, onlyReader{b})
		require.NoError(t, err)
		require.EqualValues(t, total, n)
		got := b.Seen()
		assert.GreaterOrEqual(t, got.LargeIn-before.LargeIn, uint64(total*95/100))
		assert.EqualValues(t, total, got.LargeIn+got.SmallIn-before.LargeIn-before.SmallIn)
		require.NoError(t, b.Close())
	})
}

// warmUp sends large data until some of it goes to a ring. It goes in frames until there is memory for one.
func warmUp(t *testing.T, from, to *Conn) {
	t.Helper()
	warmUpBy(t, from, to, 64<<10)
}

// warmUpBy is warmUp by writes of n bytes.
func warmUpBy(t *testing.T, from, to *Conn, n int) {
	t.Helper()
	for before := to.Seen().LargeIn; to.Seen().LargeIn == before; {
		carry(t, from, to, n)
	}
}

type onlyReader struct{ io.Reader }

// TestBothSidesWrite: both sides write first. Write blocks on credit and honours its deadline, and nothing is lost.
func TestBothSidesWrite(t *testing.T) {
	onEach(t, func(t *testing.T, _ *link, a, b *Conn) {
		data := drawn(0, 4<<20)
		var wrote [2]int
		var wg sync.WaitGroup
		for i, c := range []*Conn{a, b} {
			wg.Go(func() {
				assert.NoError(t, c.SetWriteDeadline(time.Now().Add(300*time.Millisecond)))
				n, err := c.Write(data)
				assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
				assert.Less(t, n, len(data))
				wrote[i] = n
			})
		}
		wg.Wait()
		for i, c := range []*Conn{a, b} {
			wg.Go(func() {
				assert.NoError(t, c.SetWriteDeadline(time.Time{}))
				_, err := c.Write(data[wrote[i]:])
				assert.NoError(t, err)
				assert.NoError(t, c.CloseWrite())
			})
			wg.Go(func() {
				got, err := io.ReadAll(onlyReader{c})
				assert.NoError(t, err)
				assert.True(t, bytes.Equal(got, data), "stream of %d bytes differs", len(got))
			})
		}
		wg.Wait()
		closeConns(t, a, b)
	})
}

func TestPeerLost(t *testing.T) {
	l, a, b := newConns(t, simfabric.Config{Personality: simfabric.TCP()}, Config{})
	mustWrite(t, a, []byte("last words"))
	require.NoError(t, a.CloseWrite())
	a2, b2 := l.dial(t)
	require.Eventually(t, func() bool { return b.Seen().SmallIn == 10 }, 5*time.Second, time.Millisecond)
	l.a.Lost(io.ErrUnexpectedEOF)
	l.b.Lost(io.ErrUnexpectedEOF)

	got, err := io.ReadAll(onlyReader{b}) // the writer had finished
	require.NoError(t, err)
	require.Equal(t, "last words", string(got))
	for _, c := range []*Conn{a2, b2} {
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.ErrorIs(t, c.Lost(), io.ErrUnexpectedEOF)
		require.NotErrorIs(t, err, io.ErrUnexpectedEOF, "no end of the stream")
		require.ErrorIs(t, writeN(c, 1), syscall.ECONNRESET)
	}
	closeConns(t, a, b, a2, b2)
}

// pollAlone returns once nobody but the caller polls.
func pollAlone(e *Endpoint) {
	for !e.poller.Acquire() {
		runtime.Gosched()
	}
}

// TestPeerFailsDuringPoll: a peer fails during a poll, and its memory stays mapped until the endpoint is closed.
func TestPeerFailsDuringPoll(t *testing.T) {
	l := newLink(t, simfabric.Config{Personality: simfabric.Shm()}, Config{})
	defer l.close(t)
	pollAlone(l.ea)
	locked(l.ea, func() { l.a.p.doom(errProtocol) })
	l.ea.poller.Poll()
	l.ea.poller.Release()
}

func TestBuffers(t *testing.T) {
	onEach(t, func(t *testing.T, l *link, a, b *Conn) {
		const total, size = 4 << 20, 150_000
		data := drawn(0, total)
		go func() {
			for rest := data; len(rest) > 0; {
				buf, err := a.AllocBuffer(min(size, len(rest)))
				if !assert.NoError(t, err) {
					return
				}
				rest = rest[copy(buf.Bytes(), rest):]
				assert.NoError(t, sendBuffer(a, buf))
			}
			assert.NoError(t, a.CloseWrite())
		}()
		n, holds := 0, 0
		var held []*Buffer
		for {
			buf, err := b.RecvBuffer()
			if err == io.EOF {
				break
			}
			require.NoError(t, err)
			require.True(t, bytes.HasPrefix(data[n:], buf.Bytes()), "after byte %d", n)
			n += len(buf.Bytes())
			holds += len(buf.Bytes())
			// Hold a few, and release the newest first. Held memory is window that the sender does not get.
			held = append(held, buf)
			if len(held) == 3 || l.ea.core.attr.MaxMsgSize <= 8<<10 && holds >= 8<<10 {
				for _, h := range slices.Backward(held) {
					h.Release()
				}
				held, holds = nil, 0
			}
		}
		for _, h := range held {
			h.Release()
			h.Release()
		}
		require.Equal(t, total, n)
		closeConns(t, a, b)
	})
}

// TestManyConns: a conn whose reader does not read holds up no other.
func TestManyConns(t *testing.T) {
	l, stuck, other := newConns(t, simfabric.Config{Personality: simfabric.RuleCQData(), Delay: 3}, Config{})
	var wg sync.WaitGroup
	require.NoError(t, stuck.SetWriteDeadline(time.Now().Add(time.Second)))
	wg.Go(func() {
		_, err := stuck.Write(make([]byte, 64<<20))
		assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
	})
	for i := range 20 {
		a, b := l.dial(t)
		wg.Go(func() { sendPattern(t, a, uint64(i), 300_000); assert.NoError(t, a.Close()) })
		wg.Go(func() { checkPattern(t, b, uint64(i), 300_000); assert.NoError(t, b.Close()) })
	}
	wg.Wait()
	closeConns(t, other, stuck)
}

// TestNoLostWakeUp: none is lost when both sides sleep and are woken all the time: each arms its queue as the other rings.
func TestNoLostWakeUp(t *testing.T) {
	for _, name := range []string{"shm", "tcp", "efa"} {
		for _, spin := range []time.Duration{-1, time.Microsecond, 20 * time.Microsecond} {
			t.Run(fmt.Sprintf("%s/%v", name, spin), func(t *testing.T) {
				rounds := 20_000
				if name == "efa" { // nothing to wait on: a timer polls
					rounds = 100
				}
				_, a, b := newConns(t, personalities()[name], Config{Spin: spin})
				require.NoError(t, a.SetDeadline(time.Now().Add(30*time.Second)))
				require.NoError(t, b.SetDeadline(time.Now().Add(30*time.Second)))
				var wg sync.WaitGroup
				for i, c := range []*Conn{a, b} {
					wg.Go(func() {
						for n := range rounds {
							call := c.Read
							if n%2 == i {
								call = c.Write
							}
							if _, err := call(make([]byte, 1)); !assert.NoError(t, err, "round %d", n) {
								return
							}
						}
					})
				}
				wg.Wait()
				closeConns(t, a, b)
			})
		}
	}
}

// TestOpenHeedsContext: Open ends with its context, even while somebody holds the endpoint's lock and the
// queue for a long time, as a call of a provider may, and leaves nothing behind.
func TestOpenHeedsContext(t *testing.T) {
	for _, when := range []string{"before", "meanwhile"} {
		t.Run(when, func(t *testing.T) {
			l := newLink(t, simfabric.Config{Personality: simfabric.TCP()}, Config{})
			defer l.close(t)
			var busy sync.Once
			hold := func() { busy.Do(l.ea.mu.Lock) }
			if when == "before" {
				hold()
			} else {
				l.eb.mu.Lock() // nobody answers
			}
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			opened := begin(func() error { _, err := l.a.Open(ctx, 7); return err })
			has := func(n int) func() bool { return func() bool { conns, _, _ := l.a.Idle(); return conns == n } }
			if when != "before" {
				require.Eventually(t, has(1), 10*time.Second, time.Millisecond)
				require.Eventually(t, l.ea.poller.Acquire, 10*time.Second, time.Millisecond)
			}
			hold()
			select {
			case err := <-opened:
				assert.ErrorIs(t, err, context.DeadlineExceeded)
			case <-time.After(10 * time.Second):
				t.Error("Open goes on")
			}
			l.ea.mu.Unlock()
			if when != "before" {
				l.ea.poller.Release()
				l.eb.mu.Unlock()
			}
			require.Eventually(t, has(0), 10*time.Second, time.Millisecond, "a conn is left")
		})
	}
}

// TestTurn: a conn that has moved a mebibyte lets others run, even if it need not wait.
func TestTurn(t *testing.T) {
	mappedLink(t, Config{}, func(t *testing.T, l *link) {
		a, b := l.dial(t)
		warmUp(t, a, b)
		a.sent = 0
		for range 2 {
			var n int
			var retry, ran bool
			for moved := 0; moved < turnBytes; moved += n {
				locked(l.ea, func() { n, retry = a.copyIn(make([]byte, stepSize)) })
				require.False(t, retry, "its turn is over after %d bytes", moved)
				mustRead(t, b, n)
				synctest.Wait() // there is room in the ring again
			}
			go func() { ran = true }()
			locked(l.ea, func() { n, retry = a.copyIn(make([]byte, stepSize)) })
			synctest.Wait()
			assert.True(t, ran)
			assert.True(t, n == 0 && retry, "it was its turn")
			assert.Zero(t, a.sent)
		}
		resetConns(t, a, b)
	})
}
