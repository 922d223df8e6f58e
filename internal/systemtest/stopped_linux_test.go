//go:build linux && cgo

package systemtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// A peer process that is stopped takes nothing. Over TCP no call that ends something waits for it,
// since the kernel has the bytes. Over a fabric none may take much longer.

func init() {
	rdmatest.Roles["http server"] = serveHTTP
	rdmatest.Roles["http clients"] = visitHTTP
	rdmatest.Roles["grpc server"] = serveHealth
}

const (
	// plainTCP stands for package net, beside the providers: it shows that the tests are fair.
	plainTCP = "plain TCP"
	// idleConns is how many conns there are to a peer that is stopped.
	idleConns = 6
	// notWaiting is what a call may take on a busy host that waits for a stopped peer for as long as
	// the engine does for one which gives nothing back (0.1 seconds), or not at all.
	notWaiting = 500 * time.Millisecond
)

// overEach runs a test over plain TCP and each provider.
func overEach(t *testing.T, test func(t *testing.T, provider string)) {
	for _, provider := range append([]string{plainTCP}, rdmatest.Providers...) {
		t.Run(provider, func(t *testing.T) { test(t, provider) })
	}
}

func listenOver(tr *rdmanet.Transport, provider string) (net.Listener, error) {
	if provider == plainTCP {
		return net.Listen("tcp", "127.0.0.1:0")
	}
	lc := rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}}
	return lc.Listen(context.Background(), "rdma", "127.0.0.1:0")
}

func dialOver(tr *rdmanet.Transport, provider string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if provider == plainTCP {
		return new(net.Dialer).DialContext
	}
	return (&rdmanet.Dialer{Transport: tr, Providers: []string{provider}}).DialContext
}

// serveHTTP answers until its standard input ends.
func serveHTTP(provider, _ string) error {
	l, err := listenOver(nil, provider)
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	go func() { _ = http.Serve(l, http.HandlerFunc(answer)) }() //nolint:gosec // its clients are the test's
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func answer(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }

// visitHTTP opens idleConns conns to a server, says so, and keeps them.
func visitHTTP(provider, addr string) error {
	client := &http.Client{Transport: &http.Transport{DialContext: dialOver(nil, provider), MaxIdleConnsPerHost: idleConns}}
	if err := visit(client, addr); err != nil {
		return err
	}
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// visit makes requests over idleConns conns at once, which are idle afterwards.
func visit(client *http.Client, addr string) error {
	errs := make([]error, idleConns)
	var wg, here sync.WaitGroup
	here.Add(idleConns)
	for i := range errs {
		wg.Go(func() {
			resp, err := client.Get("http://" + addr + "/")
			here.Done()
			here.Wait() // so that no conn is used twice
			if errs[i] = err; err == nil {
				_, errs[i] = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func serveHealth(provider, _ string) error {
	l, err := listenOver(nil, provider)
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	s := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(s, health.NewServer())
	go func() { _ = s.Serve(l) }()
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// soon calls f, which must not wait for a peer that is stopped. If it does, the log says where.
func soon(t *testing.T, name string, f func()) {
	t.Helper()
	start := time.Now()
	late := time.AfterFunc(notWaiting, func() { t.Logf("%s still waits:\n%s", name, rdmatest.Stacks()) })
	f()
	took := time.Since(start)
	late.Stop()
	t.Logf("%s: %v", name, took)
	assert.Less(t, took, notWaiting, "%s", name)
}

// TestStopServer: a server with conns from a client that is stopped ends as soon as one over TCP.
func TestStopServer(t *testing.T) {
	overEach(t, func(t *testing.T, provider string) {
		for name, stop := range map[string]func(t *testing.T, srv *http.Server){
			"Close": func(t *testing.T, srv *http.Server) { assert.NoError(t, srv.Close()) },
			"Shutdown": func(t *testing.T, srv *http.Server) {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				assert.NoError(t, srv.Shutdown(ctx))
			},
		} {
			t.Run(name, func(t *testing.T) {
				tr := new(rdmanet.Transport)
				defer func() { soon(t, "Transport.Close", func() { assert.NoError(t, tr.Close()) }) }()
				l, err := listenOver(tr, provider)
				require.NoError(t, err)
				srv := &http.Server{Handler: http.HandlerFunc(answer), ReadHeaderTimeout: rdmatest.Patience}
				go func() { _ = srv.Serve(l) }()
				cmd := rdmatest.Process(t, "http clients", provider, l.Addr().String())
				stdin, stdout := rdmatest.Start(t, cmd)
				defer stdin.Close()
				require.Equal(t, "ready", rdmatest.Line(t, stdout))
				rdmatest.Halt(t, cmd)
				defer func() { _ = cmd.Process.Signal(syscall.SIGCONT) }()
				soon(t, name, func() { stop(t, srv) })
			})
		}
	})
}

// TestStoppedServer: a client of a server that is stopped gives up as soon as one over TCP, and its
// requests to others do not notice.
func TestStoppedServer(t *testing.T) {
	overEach(t, func(t *testing.T, provider string) {
		tr := new(rdmanet.Transport)
		defer func() { soon(t, "Transport.Close", func() { assert.NoError(t, tr.Close()) }) }()
		// One idle conn more closes another one, while it holds a lock of all requests.
		client := &http.Client{Transport: &http.Transport{
			DialContext: dialOver(tr, provider), MaxIdleConnsPerHost: idleConns, MaxIdleConns: idleConns + 1,
		}}
		cmd, addr := server(t, "http server", provider)
		_, healthy := server(t, "http server", provider)
		require.NoError(t, get(t, client, healthy, rdmatest.Patience))
		require.NoError(t, visit(client, addr))
		time.Sleep(2 * notWaiting / 5) // the conns are idle
		rdmatest.Halt(t, cmd)
		defer func() { _ = cmd.Process.Signal(syscall.SIGCONT) }()
		soon(t, "a request to a healthy server", func() { require.NoError(t, get(t, client, healthy, rdmatest.Patience)) })
		const patience = time.Second
		start := time.Now()
		require.ErrorIs(t, get(t, client, addr, patience), context.DeadlineExceeded)
		assert.Less(t, time.Since(start), patience+notWaiting, "a request that is given up")
		soon(t, "another request to the healthy one", func() { require.NoError(t, get(t, client, healthy, rdmatest.Patience)) })
		soon(t, "CloseIdleConnections", client.CloseIdleConnections)
		soon(t, "Transport.CloseIdle", tr.CloseIdle)
	})
}

func get(t *testing.T, client *http.Client, addr string, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// TestStoppedGRPCServer: a gRPC client closes its connection to a server that is stopped, with a call
// under way.
func TestStoppedGRPCServer(t *testing.T) {
	overEach(t, func(t *testing.T, provider string) {
		tr := new(rdmanet.Transport)
		defer func() { soon(t, "Transport.Close", func() { assert.NoError(t, tr.Close()) }) }()
		cmd, addr := server(t, "grpc server", provider)
		dial := dialOver(tr, provider)
		cc, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return dial(ctx, "tcp", addr) }))
		require.NoError(t, err)
		call := func(patience time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, err := grpc_health_v1.NewHealthClient(cc).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
			return err
		}
		require.NoError(t, call(rdmatest.Patience))
		rdmatest.Halt(t, cmd)
		defer func() { _ = cmd.Process.Signal(syscall.SIGCONT) }()
		const patience = time.Second
		start := time.Now()
		require.Error(t, call(patience))
		assert.Less(t, time.Since(start), patience+notWaiting, "a call that is given up")
		soon(t, "ClientConn.Close", func() { assert.NoError(t, cc.Close()) })
	})
}

// TestCallsToStoppedPeer: none of the calls that end something waits for a peer that is stopped, even
// if it has taken nothing for long and nothing more can be sent to it.
func TestCallsToStoppedPeer(t *testing.T) {
	for _, provider := range rdmatest.Providers {
		t.Run(provider, func(t *testing.T) {
			_, cmd, d, addr := frozen(t, provider)
			var conns []*rdmanet.Conn
			for range idleConns {
				conns = append(conns, dial(t, d, addr).(*rdmanet.Conn))
			}
			rdmatest.Halt(t, cmd)
			for _, c := range conns[:2] { // until nothing more goes
				require.NoError(t, c.SetWriteDeadline(time.Now().Add(notWaiting)))
				_, err := c.Write(pseudorandom(64 << 20))
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			}
			soon(t, "SetDeadline", func() { require.NoError(t, conns[2].SetDeadline(time.Now())) })
			soon(t, "Read", func() {
				_, err := conns[2].Read(make([]byte, 1))
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			})
			soon(t, "CloseRead", func() { require.NoError(t, conns[2].CloseRead()) })
			soon(t, "CloseWrite", func() { require.NoError(t, conns[0].CloseWrite()) })
			soon(t, "Close of all", func() {
				for _, c := range conns {
					require.NoError(t, c.Close())
				}
			})
			soon(t, "CloseIdle", d.Transport.CloseIdle)
			soon(t, "Transport.Close", func() { require.NoError(t, d.Transport.Close()) })
		})
	}
}
