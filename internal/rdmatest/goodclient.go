package rdmatest

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// ServeEcho echoes what arrives on each conn until that conn ends. It returns when l is closed and
// all conns have ended.
func ServeEcho(l net.Listener) {
	Serve(l, func(c net.Conn) {
		defer c.Close()
		_, _ = io.Copy(c, c)
	})
}

// GoodClient sends data to an echo all the time, and checks what comes back.
type GoodClient struct {
	c     net.Conn
	moved atomic.Int64
	ended atomic.Bool
	err   error
	done  chan struct{}
}

// NewGoodClient dials the echo at addr.
func NewGoodClient(t *testing.T, d *rdmanet.Dialer, addr string) *GoodClient {
	c, err := d.Dial("rdma", addr)
	require.NoError(t, err)
	g := &GoodClient{c: c, done: make(chan struct{})}
	go func() {
		defer close(g.done)
		g.err = g.run()
	}()
	return g
}

func (g *GoodClient) run() error {
	out := make([]byte, 256<<10)
	in := make([]byte, len(out))
	for i := range out {
		out[i] = byte(i * i >> 7)
	}
	for pos := 0; !g.ended.Load(); pos++ {
		b := out[pos%1000:][:1+rand.IntN(1<<rand.IntN(18))]
		if err := g.c.SetDeadline(time.Now().Add(Patience)); err != nil {
			return err
		}
		sent := make(chan error, 1)
		go func() {
			_, err := g.c.Write(b)
			sent <- err
		}()
		if _, err := io.ReadFull(g.c, in[:len(b)]); err != nil {
			return fmt.Errorf("reading: %w", err)
		}
		if err := <-sent; err != nil {
			return fmt.Errorf("writing: %w", err)
		}
		for i := range b {
			if b[i] != in[i] {
				return fmt.Errorf("message %d of %d bytes: wrong byte at %d", pos, len(b), i)
			}
		}
		g.moved.Add(int64(len(b)))
	}
	return nil
}

// Works waits until the client has moved another 256 KiB.
func (g *GoodClient) Works(t *testing.T, when string) {
	t.Helper()
	from := g.moved.Load()
	require.Eventually(t, func() bool {
		select {
		case <-g.done:
			return true
		default:
			return g.moved.Load() > from+256<<10
		}
	}, Patience, time.Millisecond, "%s: the good client is stuck", when)
	select {
	case <-g.done:
		require.NoError(t, g.err, when)
	default:
	}
}

// Stop ends the client, for which everything must have gone well.
func (g *GoodClient) Stop(t *testing.T) {
	t.Helper()
	g.ended.Store(true)
	<-g.done
	require.NoError(t, g.err)
	require.NoError(t, g.c.Close())
	t.Logf("the good client has moved %d MiB", g.moved.Load()>>20)
}
