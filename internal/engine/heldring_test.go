package engine

import (
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
)

// hold takes Buffers until n bytes are held, within a minute.
func hold(t *testing.T, b *Conn, n int) (held []*Buffer) {
	t.Helper()
	assert.NoError(t, b.SetReadDeadline(time.Now().Add(time.Minute)))
	for got := 0; got < n; {
		buf, err := b.RecvBuffer()
		if !assert.NoError(t, err, "%d of %d bytes held", got, n) {
			return held
		}
		held = append(held, buf)
		got += len(buf.Bytes())
	}
	return held
}

// end releases what was held, and resets conns.
func end(t *testing.T, held []*Buffer, conns ...*Conn) {
	for _, h := range held {
		h.Release()
	}
	resetConns(t, conns...)
}

// busyBeside has another conn use staging memory until stop is called, as on a busy endpoint.
// Otherwise that memory is given back, and writers that wait for a ring send frames.
func busyBeside(t *testing.T, l *link) (stop func()) {
	c, d := l.dial(t)
	warmUp(t, c, d)
	var wg sync.WaitGroup
	over := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(300 * time.Millisecond):
			}
			go func() { _, _ = c.Write(make([]byte, 20<<10)) }()
			_, _ = io.ReadFull(d, make([]byte, 20<<10))
		}
	})
	return func() {
		close(over)
		wg.Wait()
		end(t, nil, c, d)
	}
}

// waysToSend are the ways in which n bytes can be sent.
var waysToSend = map[string]func(t *testing.T, a *Conn, n int){
	"Write": func(_ *testing.T, a *Conn, n int) { _, _ = a.Write(make([]byte, n)) },
	"SendBuffer": func(t *testing.T, a *Conn, n int) {
		if buf, err := a.AllocBuffer(n); assert.NoError(t, err) {
			_ = sendBuffer(a, buf)
		}
	},
}

// TestHeldInSmallRing: a user that holds less than half of the smallest ring, across the end of the
// ring, gets the rest.
func TestHeldInSmallRing(t *testing.T) {
	const k, size = 1 << 10, 64 << 10
	for name, send := range waysToSend {
		t.Run(name, func(t *testing.T) {
			virtual(t, Config{Ring: size}, func(t *testing.T, l *link) {
				defer busyBeside(t, l)()
				a, b := l.dial(t)
				warmUp(t, a, b)
				at := func() uint64 {
					l.ea.mu.Lock()
					defer l.ea.mu.Unlock()
					return (a.stream.largeOut - a.stream.outLease.base) % size
				}
				for i := 0; at() < 44*k || at() > 53*k; i++ {
					require.Less(t, i, 100)
					_, err := a.Write(make([]byte, 9*k))
					require.NoError(t, err)
					end(t, hold(t, b, 9*k))
				}
				first := size - int(at()) + 10*k
				require.Less(t, first, size/2)
				_, err := a.Write(make([]byte, first))
				require.NoError(t, err)
				go send(t, a, 54*k)
				start := time.Now()
				held := hold(t, b, first+54*k)
				assert.Less(t, time.Since(start), choreTime)
				end(t, held, b, a)
			})
		})
	}
}

// TestHeldWrites: a user that holds as many writes as there may be, in a small part of a large
// ring, gets more.
func TestHeldWrites(t *testing.T) {
	const n, size = 80, 9 << 10
	for name, send := range waysToSend {
		t.Run(name, func(t *testing.T) {
			virtual(t, Config{Ring: 8 << 20}, func(t *testing.T, l *link) {
				defer busyBeside(t, l)()
				a, b := l.dial(t)
				warmUp(t, a, b)
				go func() {
					for range n {
						send(t, a, size)
					}
				}()
				start := time.Now()
				held := hold(t, b, n*size)
				assert.Less(t, time.Since(start), choreTime)
				end(t, held, b, a)
			})
		})
	}
}

// TestHeldSmallWrites: the same holds where the writes are small, and went to the ring because the
// window was full.
func TestHeldSmallWrites(t *testing.T) {
	virtual(t, Config{}, func(t *testing.T, l *link) {
		defer busyBeside(t, l)()
		a, b := l.dial(t)
		warmUp(t, a, b)
		total := 0
		for full := false; !full; {
			n, err := a.Write(make([]byte, a.stream.p.eager))
			total += n
			require.NoError(t, err)
			l.ea.mu.Lock()
			full = a.stream.windowFull()
			l.ea.mu.Unlock()
		}
		require.NoError(t, a.SetWriteDeadline(time.Now().Add(time.Second)))
		for range framing.MaxWrites {
			n, err := a.Write(make([]byte, 100))
			if total += n; err != nil {
				break
			}
		}
		require.NoError(t, a.SetWriteDeadline(time.Time{}))
		held := hold(t, b, total)
		go func() {
			for range 4 {
				_, _ = a.Write(make([]byte, 20<<10))
			}
		}()
		start := time.Now()
		held = append(held, hold(t, b, 4*20<<10)...)
		assert.Less(t, time.Since(start), choreTime)
		end(t, held, b, a)
	})
}

// TestStallsRing: a ring that has room does not count as one that was waited for.
func TestStallsRing(t *testing.T) {
	virtual(t, Config{Ring: 1 << 20, first: 1 << 20}, func(t *testing.T, l *link) {
		a, b := l.dial(t)
		warmUp(t, a, b)
		before := l.ea.Stats().Stalls.Ring
		for range 13 {
			_, err := a.Write(make([]byte, 64<<10))
			require.NoError(t, err)
		}
		assert.Equal(t, before, l.ea.Stats().Stalls.Ring)
		end(t, nil, b, a)
	})
}
