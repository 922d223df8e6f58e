package engine

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
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

func wrap(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: "x", Net: "rdma", Err: err}
}

func (c opErr) Read(b []byte) (int, error)  { n, err := c.netConn.Read(b); return n, wrap(err) }
func (c opErr) Write(b []byte) (int, error) { n, err := c.netConn.Write(b); return n, wrap(err) }

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
	for name, sim := range personalities() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLink(t, sim, Config{})
			defer l.close(t)
			a, b := l.dial(t)
			var wg sync.WaitGroup
			for i, c := range []*Conn{a, b} {
				wg.Go(func() { sendPattern(t, c, uint64(i), 2<<20) })
				wg.Go(func() { checkPattern(t, c, uint64(1-i), 2<<20) })
			}
			wg.Wait()
			assert.NoError(t, a.Close())
			assert.NoError(t, b.Close())
		})
	}
}

func sendPattern(t *testing.T, c *Conn, seed uint64, size int) {
	rng := rand.New(rand.NewPCG(seed, 1))
	sizes := rand.New(rand.NewPCG(seed, 2))
	for size > 0 {
		b := make([]byte, min(size, 1+sizes.IntN(1<<sizes.IntN(18))))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		n, err := c.Write(b)
		clear(b) // the memory is the caller's again
		if !assert.NoError(t, err) || !assert.Equal(t, len(b), n) {
			return
		}
		size -= n
	}
	assert.NoError(t, c.CloseWrite())
}

func checkPattern(t *testing.T, c *Conn, seed uint64, size int) {
	rng := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, 100_000)
	got := 0
	for {
		n, err := c.Read(b[:1+got%(len(b)-1)])
		for i := range b[:n] {
			if want := byte(rng.Uint32()); b[i] != want {
				t.Errorf("byte %d is %#x, want %#x", got+i, b[i], want)
				return
			}
		}
		got += n
		if err == io.EOF {
			break
		}
		if !assert.NoError(t, err) {
			return
		}
	}
	assert.Equal(t, size, got)
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

// warmUp sends large data until some of it goes to a ring. It goes in frames until there is memory
// for one.
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

// TestBothSidesWrite: neither side reads before the other has written. Write blocks on credit and
// honours its deadline, and nothing is lost.
func TestBothSidesWrite(t *testing.T) {
	onEach(t, func(t *testing.T, _ *link, a, b *Conn) {
		data := make([]byte, 4<<20)
		_, _ = rand.NewChaCha8([32]byte{}).Read(data)
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
	_, err := a.Write([]byte("last words"))
	require.NoError(t, err)
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
		_, err = c.Write(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
	for _, c := range []*Conn{a, b, a2, b2} {
		require.NoError(t, c.Close())
	}
}

// TestPeerFailsDuringPoll: a peer fails while the queue is being polled, and its memory stays
// mapped until the endpoint is closed.
func TestPeerFailsDuringPoll(t *testing.T) {
	l := newLink(t, simfabric.Config{Personality: simfabric.Shm()}, Config{})
	defer l.close(t)
	for !l.ea.poller.Acquire() {
		runtime.Gosched()
	}
	locked(l.ea, func() { l.a.p.doom(errProtocol) })
	l.ea.poller.Poll()
	l.ea.poller.Release()
}

func TestBuffers(t *testing.T) {
	for name, sim := range personalities() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLink(t, sim, Config{})
			defer l.close(t)
			a, b := l.dial(t)
			const total, size = 4 << 20, 150_000
			go func() {
				n := 0
				for n < total {
					buf, err := a.AllocBuffer(min(size, total-n))
					if !assert.NoError(t, err) {
						return
					}
					for i := range buf.Bytes() {
						buf.Bytes()[i] = byte((n + i) * 7 >> 3)
					}
					n += len(buf.Bytes())
					assert.NoError(t, sendBuffer(a, buf))
				}
				assert.NoError(t, a.CloseWrite())
			}()
			n := 0
			var held []*Buffer
			for {
				buf, err := b.RecvBuffer()
				if err == io.EOF {
					break
				}
				require.NoError(t, err)
				for i, v := range buf.Bytes() {
					if v != byte((n+i)*7>>3) {
						t.Fatalf("byte %d differs", n+i)
					}
				}
				n += len(buf.Bytes())
				// Hold a few, and release the newest first. Held memory is window that the sender
				// does not get.
				held = append(held, buf)
				bytes := 0
				for _, h := range held {
					bytes += len(h.Bytes())
				}
				if len(held) == 3 || sim.MaxMsgSize > 0 && bytes >= 8<<10 {
					for i := len(held) - 1; i >= 0; i-- {
						held[i].Release()
					}
					held = nil
				}
			}
			for _, h := range held {
				h.Release()
				h.Release()
			}
			require.Equal(t, total, n)
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
		})
	}
}

// TestManyConns: a conn whose reader does not read holds up no other.
func TestManyConns(t *testing.T) {
	l := newLink(t, simfabric.Config{Personality: simfabric.RuleCQData(), Delay: 3}, Config{})
	defer l.close(t)
	var wg sync.WaitGroup
	stuck, other := l.dial(t)
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
	assert.NoError(t, other.Close())
	assert.NoError(t, stuck.Close())
}

// TestNoLostWakeUp: no wake-up is lost when both sides go to sleep and are woken as often as
// possible, so that each arms the queue just when the other rings.
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
						buf := make([]byte, 1)
						for n := range rounds {
							if n%2 == i {
								_, err := c.Write(buf)
								if !assert.NoError(t, err) {
									return
								}
								continue
							}
							if _, err := c.Read(buf); !assert.NoError(t, err, "round %d", n) {
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

// TestOpenHeedsContext: Open ends with its context, even while somebody holds the endpoint's lock
// for a long time, as a call of a provider may, and leaves nothing behind.
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
			failed := make(chan error, 1)
			go func() {
				_, err := l.a.Open(ctx, 7)
				failed <- err
			}()
			require.Eventually(t, func() bool {
				conns, _, _ := l.a.Idle()
				return when == "before" || conns == 1
			}, 10*time.Second, time.Millisecond)
			hold()
			select {
			case err := <-failed:
				assert.ErrorIs(t, err, context.DeadlineExceeded)
			case <-time.After(10 * time.Second):
				t.Error("Open goes on")
			}
			l.ea.mu.Unlock()
			if when != "before" {
				l.eb.mu.Unlock()
			}
			require.Eventually(t, func() bool {
				conns, _, _ := l.a.Idle()
				return conns == 0
			}, 10*time.Second, time.Millisecond, "a conn is left")
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
				_, err := io.ReadFull(b, make([]byte, n))
				require.NoError(t, err)
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
