package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

const patience = 20 * time.Second

// anywhere returns a free endpoint of a network.
func anywhere(t *testing.T, network string) endpoint {
	t.Helper()
	if network != "unix" {
		return endpoint{network, testenv.Address()}
	}
	dir, err := os.MkdirTemp("", "proxy") // t.TempDir may be too long for a socket's path
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	return endpoint{"unix", filepath.Join(dir, "socket")}
}

// listen listens at a free endpoint of a network and returns both.
func listen(t *testing.T, network string) (net.Listener, endpoint) {
	t.Helper()
	// This process is both sides, and each listener is another peer. Peers are kept for a
	// while, and a provider has room for a few dozen only.
	t.Cleanup(rdmanet.DefaultTransport.CloseIdle)
	e := anywhere(t, network)
	l, err := e.listen(t.Context(), new(rdmanet.ListenConfig))
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l, endpoint{network, l.Addr().String()}
}

// start runs a proxy that listens on a network. stop ends it and waits for that.
func start(t *testing.T, network string, p *proxy) (at endpoint, stop func()) {
	t.Helper()
	if p.log == nil {
		p.log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	if p.dial == 0 {
		p.dial = patience
	}
	if p.dialer == nil {
		p.dialer = new(rdmanet.Dialer)
	}
	l, at := listen(t, network)
	return at, serve(t, p, l)
}

// serve runs a proxy for a listener, until the test ends or stop is called.
func serve(t *testing.T, p *proxy, l net.Listener) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() {
		defer close(served)
		p.serve(ctx, l)
	}()
	stop = func() {
		cancel()
		<-served
	}
	t.Cleanup(stop)
	return stop
}

// connect dials, and sets a deadline for all that follows.
func connect(t *testing.T, to endpoint) conn {
	t.Helper()
	c, err := to.dial(t.Context(), new(rdmanet.Dialer))
	require.NoError(t, err)
	return limited(t, c)
}

func accept(t *testing.T, l net.Listener) conn {
	t.Helper()
	require.NoError(t, l.(interface{ SetDeadline(time.Time) error }).SetDeadline(time.Now().Add(patience)))
	c, err := l.Accept()
	require.NoError(t, err)
	return limited(t, c.(conn))
}

func limited(t *testing.T, c conn) conn {
	t.Helper()
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	t.Cleanup(func() { reset(c) })
	return c
}

// pass checks that bytes go both ways.
func pass(t *testing.T, a, b conn) {
	t.Helper()
	for _, x := range [][2]conn{{a, b}, {b, a}} {
		_, err := x[0].Write([]byte("hello"))
		require.NoError(t, err)
		_, err = io.ReadFull(x[1], make([]byte, len("hello")))
		require.NoError(t, err)
	}
}

// eachWay runs a test with a client and a server connected through a proxy, between networks
// of all kinds, and over each provider if there is a fabric on the way.
func eachWay(t *testing.T, test func(t *testing.T, from, to string, client, server conn)) {
	for _, way := range [][2]string{
		{"tcp", "tcp"}, {"unix", "tcp"}, {"tcp", "rdma"}, {"unix", "rdma"}, {"rdma", "tcp"}, {"rdma", "unix"}, {"rdma", "rdma"},
	} {
		providers := testenv.Providers()
		if way[0] != "rdma" && way[1] != "rdma" {
			providers = []string{"no fabric"}
		}
		for _, provider := range providers {
			t.Run(fmt.Sprint(way[0], " to ", way[1], " ", provider), func(t *testing.T) {
				t.Setenv("RDMANET_PROVIDERS", provider)
				l, to := listen(t, way[1])
				at, _ := start(t, way[0], &proxy{to: to})
				client := connect(t, at)
				test(t, way[0], way[1], client, accept(t, l))
			})
		}
	}
}

// A side's end of stream reaches the other side while the opposite direction goes on.
func TestHalfClose(t *testing.T) {
	long := bytes.Repeat([]byte("0123456789abcdef"), 50_000)
	eachWay(t, func(t *testing.T, _, _ string, client, server conn) {
		for _, x := range [][2]conn{{client, server}, {server, client}} {
			sent := make(chan error, 1)
			go func() {
				_, err := x[0].Write(long)
				sent <- errors.Join(err, x[0].CloseWrite())
			}()
			got, err := io.ReadAll(x[1])
			require.NoError(t, err)
			assert.True(t, bytes.Equal(long, got), "%d bytes", len(got))
			require.NoError(t, <-sent)
		}
	})
}

// A conn that is reset on one side is reset on the other. A Unix socket only knows the end of
// a stream.
func TestResetPassesOn(t *testing.T) {
	eachWay(t, func(t *testing.T, from, to string, client, server conn) {
		pass(t, client, server)
		victim, at, by := server, to, from
		if from == "unix" {
			victim, at, by = client, from, to
			reset(server)
		} else {
			reset(client)
		}
		_, err := victim.Read(make([]byte, 1))
		if at == "unix" || by == "unix" {
			assert.Equal(t, io.EOF, err)
		} else {
			assert.ErrorIs(t, err, syscall.ECONNRESET)
		}
	})
}

// What a fabric has written into memory goes to the target from there.
func TestNotCopied(t *testing.T) {
	for _, provider := range testenv.Providers() {
		t.Run(provider, func(t *testing.T) {
			t.Setenv("RDMANET_PROVIDERS", provider)
			lent := func() uint64 { return rdmanet.DefaultTransport.Stats().Providers[provider].Copies.Lent }
			backend, to := listen(t, "tcp")
			at, _ := start(t, "rdma", &proxy{to: to})
			client, server := connect(t, at), accept(t, backend)
			const size = 32 << 20 // more than waits without a ring
			before, sent := lent(), make(chan error, 1)
			go func() { _, err := client.Write(make([]byte, size)); sent <- err }()
			_, err := io.CopyN(io.Discard, server, size)
			require.NoError(t, err)
			require.NoError(t, <-sent)
			assert.Greater(t, lent(), before)
		})
	}
}

// Data on its way to a client when the conn ends still arrives, however late the client reads.
func TestLateReader(t *testing.T) {
	answer := bytes.Repeat([]byte("0123456789"), 50_000)
	backend, to := listen(t, "tcp")
	p := &proxy{to: to}
	at, _ := start(t, "tcp", p)
	client, server := connect(t, at), accept(t, backend)
	require.NoError(t, client.CloseWrite())
	_, err := server.Write(answer)
	require.NoError(t, err)
	require.NoError(t, server.Close())
	counted(t, p, done, 1)
	got, err := io.ReadAll(client)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(answer, got), "%d bytes", len(got))
}

// An answer that a server sends before it closes arrives, although the client goes on sending.
func TestAnswerBeforeTheEndOfTheRequest(t *testing.T) {
	answer := bytes.Repeat([]byte("too large "), 10_000)
	for _, provider := range testenv.Providers() {
		t.Run(provider, func(t *testing.T) {
			t.Setenv("RDMANET_PROVIDERS", provider)
			l, to := listen(t, "rdma")
			at, _ := start(t, "unix", &proxy{to: to})
			client, sent := connect(t, at), make(chan struct{})
			server := accept(t, l)
			go func() {
				defer close(sent)
				for buf := make([]byte, 1<<10); ; {
					if _, err := client.Write(buf); err != nil {
						return
					}
				}
			}()
			_, err := io.ReadFull(server, make([]byte, 1<<20))
			require.NoError(t, err)
			go func() {
				_, _ = server.Write(answer)
				_ = server.Close()
			}()
			got := make([]byte, len(answer))
			_, err = io.ReadFull(client, got)
			require.NoError(t, err)
			assert.True(t, bytes.Equal(answer, got))
			reset(client)
			<-sent
		})
	}
}

// A client is reset if its target cannot be reached, or not in time.
func TestCannotConnect(t *testing.T) {
	free, nowhere := listen(t, "tcp")
	require.NoError(t, free.Close())
	// Accepts TCP connections and never speaks the fabric's protocol.
	silent, err := net.Listen("tcp", testenv.Address())
	require.NoError(t, err)
	defer silent.Close()
	for name, to := range map[string]endpoint{
		"refused": nowhere,
		"silent":  {"rdma", silent.Addr().String()},
	} {
		t.Run(name, func(t *testing.T) {
			at, _ := start(t, "tcp", &proxy{to: to, limits: limits{dial: 100 * time.Millisecond}})
			began := time.Now()
			c, err := at.dial(t.Context(), new(rdmanet.Dialer)) // may fail with the reset already
			if err == nil {
				_, err = limited(t, c).Read(make([]byte, 1))
			}
			assert.ErrorIs(t, err, syscall.ECONNRESET)
			assert.Less(t, time.Since(began), rdmanet.DefaultHandshakeTimeout, "it is the proxy's own limit")
		})
	}
}

// TestManyConns: many clients talk to an echo server at the same time, through two proxies
// with a fabric between them.
func TestManyConns(t *testing.T) {
	const clients = 100
	for _, provider := range testenv.Providers() {
		t.Run(provider, func(t *testing.T) {
			t.Setenv("RDMANET_PROVIDERS", provider)
			l, server := listen(t, "tcp")
			go func() {
				for c, err := l.Accept(); err == nil; c, err = l.Accept() {
					go func() {
						_, _ = io.Copy(c, c)
						_ = c.Close()
					}()
				}
			}()
			fabric, _ := start(t, "rdma", &proxy{to: server})
			at, _ := start(t, "unix", &proxy{to: fabric})
			var wg sync.WaitGroup
			for i := range clients {
				c := connect(t, at)
				wg.Go(func() {
					want, got := sha256.New(), sha256.New()
					var sending sync.WaitGroup
					sending.Go(func() {
						size := int64(1000 * (i + 1))
						_, err := io.CopyN(io.MultiWriter(c, want), rand.NewChaCha8([32]byte{byte(i)}), size)
						assert.NoError(t, errors.Join(err, c.CloseWrite()))
					})
					_, err := io.Copy(got, c)
					assert.NoError(t, err)
					sending.Wait()
					assert.Equal(t, want.Sum(nil), got.Sum(nil), "conn %d", i)
				})
			}
			wg.Wait()
		})
	}
}

// A proxy that is told to stop takes no more clients, and waits for the conns that it has
// for as long as the grace period.
func TestStop(t *testing.T) {
	for _, network := range []string{"tcp", "unix", "rdma"} {
		t.Run(network, func(t *testing.T) {
			l, to := listen(t, "tcp")
			at, stop := start(t, network, &proxy{to: to, limits: limits{grace: patience}})
			client := connect(t, at)
			server := accept(t, l)
			stopped := make(chan struct{})
			go func() { defer close(stopped); stop() }()
			require.Eventually(t, func() bool {
				c, err := at.dial(t.Context(), new(rdmanet.Dialer))
				if err == nil {
					reset(c)
				}
				return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist)
			}, patience, time.Millisecond)
			pass(t, client, server)
			select {
			case <-stopped:
				assert.Fail(t, "it does not wait")
			default:
			}
			require.NoError(t, client.Close())
			require.NoError(t, server.Close())
			<-stopped
		})
		t.Run(network+" without grace", func(t *testing.T) {
			l, to := listen(t, "tcp")
			at, stop := start(t, network, &proxy{to: to})
			client, server := connect(t, at), accept(t, l)
			pass(t, client, server)
			stop()
			_, err := server.Read(make([]byte, 1))
			assert.ErrorIs(t, err, syscall.ECONNRESET)
			_, err = client.Read(make([]byte, 1))
			assert.Error(t, err)
			assert.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		})
	}
}

// A proxy removes its socket's file when it ends. A file that was left behind is no obstacle, but
// neither a file of another kind nor a socket in use is removed.
func TestSocketFile(t *testing.T) {
	e := anywhere(t, "unix")
	l, err := e.listen(t.Context(), new(rdmanet.ListenConfig))
	require.NoError(t, err)
	_, err = e.listen(t.Context(), new(rdmanet.ListenConfig))
	assert.ErrorIs(t, err, syscall.EADDRINUSE)
	connect(t, e)

	l.(*net.UnixListener).SetUnlinkOnClose(false) // as if the process had been killed
	require.NoError(t, l.Close())
	assert.FileExists(t, e.address)
	l, err = e.listen(t.Context(), new(rdmanet.ListenConfig))
	require.NoError(t, err)
	connect(t, e)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	(&proxy{log: slog.New(slog.DiscardHandler)}).serve(ctx, l)
	assert.NoFileExists(t, e.address)

	require.NoError(t, os.WriteFile(e.address, []byte("precious"), 0o600))
	_, err = e.listen(t.Context(), new(rdmanet.ListenConfig))
	assert.ErrorIs(t, err, syscall.EADDRINUSE)
	assert.FileExists(t, e.address)
}

func TestEndpoints(t *testing.T) {
	for text, want := range map[string]string{ // part of the error
		"tcp://:8080": "", "tcp://[::1]:80": "", "rdma://host:9000": "", "unix:///run/proxy": "", "unix://proxy": "",
		"": "begins with", "host:80": "begins with", "udp://:1": "none of", "unix://": "unix://path",
		"tcp://host": "missing port", "rdma://::1:9000": "too many colons",
	} {
		var e endpoint
		err := e.Set(text)
		if want == "" {
			assert.NoError(t, err)
			assert.Equal(t, text, e.String())
		} else {
			assert.ErrorContains(t, err, want, text)
		}
	}
}
