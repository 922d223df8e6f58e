package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// assertResetConn checks that a conn is reset, or that dialing it failed with a reset.
func assertResetConn(t *testing.T, c net.Conn, err error) {
	t.Helper()
	if err == nil {
		_, err = limited(t, c.(conn)).Read(make([]byte, 1))
	}
	assert.ErrorIs(t, err, syscall.ECONNRESET)
}

// counted waits until n conns have ended with outcome o.
func counted(t *testing.T, p *proxy, o outcome, n uint64) {
	t.Helper()
	require.Eventually(t, func() bool { return p.counts.ended[o].Load() == n }, patience, time.Millisecond, "%v", o)
}

// A client is reset if there is no place for it. One that leaves makes its place free.
func TestMaxConns(t *testing.T) {
	for _, network := range []string{"tcp", "rdma"} {
		t.Run(network, func(t *testing.T) {
			backend, to := listen(t, "tcp")
			p := &proxy{to: to, limits: limits{maxConns: 2}}
			at, _ := start(t, network, p)
			first, firstServer := connect(t, at), accept(t, backend)
			second, secondServer := connect(t, at), accept(t, backend)
			for range 3 {
				assertReset(t, at)
			}
			// More than 3 if a dial over a fabric is reset before it is done: it tries once more.
			require.Eventually(t, func() bool { return p.counts.ended[tooMany].Load() >= 3 }, patience, time.Millisecond)
			assert.EqualValues(t, 2, p.counts.open.Load())
			pass(t, second, secondServer)
			require.NoError(t, first.Close())
			require.NoError(t, firstServer.Close())
			require.Eventually(t, func() bool { return p.counts.open.Load() == 1 }, patience, time.Millisecond)
			pass(t, connect(t, at), accept(t, backend))
		})
	}
}

// elsewhere is a listener whose clients come from the given addresses, one after the other.
type elsewhere struct {
	net.Listener
	from chan string
}

type distant struct {
	*net.TCPConn
	from net.Addr
}

func (c distant) RemoteAddr() net.Addr { return c.from }

func (l elsewhere) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return distant{c.(*net.TCPConn), &net.TCPAddr{IP: net.ParseIP(<-l.from), Port: 1}}, nil
}

// A host that has taken its places leaves those of others.
func TestMaxConnsPerHost(t *testing.T) {
	backend, to := listen(t, "tcp")
	l, at := listen(t, "tcp")
	log := new(record)
	p := &proxy{to: to, dialer: new(rdmanet.Dialer), log: slog.New(slog.NewTextHandler(log, nil)), limits: limits{maxConns: 3, maxPerHost: 1, dial: patience}}
	from := make(chan string, 5)
	serve(t, p, elsewhere{l, from})
	for _, ip := range []string{"192.0.2.1", "192.0.2.1", "2001:db8::1", "2001:db8::2", "192.0.2.2"} {
		from <- ip
	}
	first, firstServer := connect(t, at), accept(t, backend)
	assertReset(t, at)
	second, secondServer := connect(t, at), accept(t, backend)
	assertReset(t, at)
	third, thirdServer := connect(t, at), accept(t, backend)
	pass(t, first, firstServer)
	pass(t, second, secondServer)
	pass(t, third, thirdServer)
	assert.EqualValues(t, 2, p.counts.ended[tooManyOfHost].Load())
	assert.Contains(t, log.String(), `why="too many from one host"`)
}

// On virtual time: a conn counts as idle once nothing has been carried for the whole limit, and not
// before.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = time.Minute
		a, began := newActivity(), time.Now()
		var end time.Duration
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.watch(t.Context(), limit, func() { end = time.Since(began) })
		}()
		for range 100 {
			time.Sleep(limit - time.Second)
			a.touch()
		}
		<-done
		assert.Equal(t, 100*(limit-time.Second)+limit, end)

		ctx, cancel := context.WithTimeout(t.Context(), limit/2)
		defer cancel()
		began = time.Now()
		newActivity().watch(ctx, limit, func() { assert.Fail(t, "it has ended before") })
		assert.Equal(t, limit/2, time.Since(began))
	})
}

// On virtual time: a conn whose receiver takes a piece now and then is not idle, however
// large the Write is.
func TestSlowReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, pieces = time.Minute, 10
		slow := sink{slowConn{time: limit - time.Second}, newActivity(), new(atomic.Uint64)}
		began, idle := time.Now(), make(chan time.Duration, 1)
		go slow.watch(t.Context(), limit, func() { idle <- time.Since(began) })
		n, err := slow.Write(make([]byte, pieces*pieceSize))
		require.NoError(t, err)
		assert.Equal(t, pieces*pieceSize, n)
		assert.EqualValues(t, n, slow.carried.Load())
		assert.Equal(t, pieces*(limit-time.Second)+limit, <-idle)
	})
}

// slowConn takes the given time for each Write.
type slowConn struct {
	conn
	time time.Duration
}

func (c slowConn) Write(b []byte) (int, error) {
	time.Sleep(c.time)
	return len(b), nil
}

// A conn that carries nothing is reset: a silent one, one with one direction closed,
// and one whose receiver does not read.
func TestIdle(t *testing.T) {
	const limit = 100 * time.Millisecond
	reads := func(c conn) error { _, err := c.Read(make([]byte, 1)); return err }
	writes := func(c conn) error { _, err := io.Copy(c, endless{}); return err }
	discards := func(c conn) error { _, err := io.Copy(io.Discard, c); return err }
	for _, provider := range testenv.Providers() {
		for name, tt := range map[string]struct {
			client, server, late func(conn) error // late runs after the proxy has reset both
		}{
			"silent":                     {client: reads, server: reads},
			"half closed":                {client: func(c conn) error { return errors.Join(c.CloseWrite(), reads(c)) }},
			"not received":               {client: writes, late: discards},
			"not received by the client": {server: writes},
		} {
			t.Run(provider+" "+name, func(t *testing.T) {
				t.Setenv("RDMANET_PROVIDERS", provider)
				backend, to := listen(t, "rdma")
				p := &proxy{to: to, limits: limits{idle: limit}}
				at, _ := start(t, "tcp", p)
				began := time.Now()
				client, server := connect(t, at), accept(t, backend)
				var using sync.WaitGroup
				for c, use := range map[conn]func(conn) error{client: tt.client, server: tt.server} {
					if use != nil {
						using.Go(func() { assert.ErrorIs(t, use(c), syscall.ECONNRESET) })
					}
				}
				counted(t, p, idle, 1)
				using.Wait()
				assert.GreaterOrEqual(t, time.Since(began), limit)
				if tt.late != nil {
					assert.ErrorIs(t, tt.late(server), syscall.ECONNRESET, "no end of stream for what is not whole")
				}
			})
		}
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }
