package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

const asProgram = "FABRICNET_TEST_PROGRAM"

// TestMain lets the test binary be fabricnet in child processes.
func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// child is fabricnet proxy in a process of its own.
type child struct {
	*exec.Cmd
	at      endpoint
	metrics string // address of the metrics page
	exited  chan error
}

var (
	listening = regexp.MustCompile(`msg=listening at=(\S+)`)
	page      = regexp.MustCompile(`msg=metrics at=(\S+)`)
)

// program returns fabricnet proxy, not started yet. It is killed by kill, or when its time is over.
func program(t *testing.T, flags ...string) (c *child, kill func()) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	c = &child{Cmd: exec.CommandContext(ctx, self, append([]string{"proxy"}, flags...)...), exited: make(chan error, 1)}
	c.Env = append(os.Environ(), asProgram+"=1")
	return c, cancel
}

// startChild starts fabricnet proxy and waits until it listens.
func startChild(t *testing.T, flags ...string) *child {
	t.Helper()
	c, cancel := program(t, flags...)
	stderr, err := c.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	ready, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			fmt.Fprintln(t.Output(), "child:", lines.Text())
			if m := page.FindStringSubmatch(lines.Text()); m != nil {
				c.metrics = m[1]
			}
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				assert.NoError(t, c.at.Set(m[1]))
				close(ready)
			}
		}
		c.exited <- c.Wait()
	}()
	t.Cleanup(func() {
		cancel()
		<-gone
	})
	select {
	case <-ready:
	case <-gone:
		require.FailNow(t, "the child has ended")
	}
	return c
}

// ended waits for the process to exit.
func (c *child) ended(t *testing.T) error {
	t.Helper()
	select {
	case err := <-c.exited:
		return err
	case <-time.After(patience):
		require.FailNow(t, "the child does not end")
		return nil
	}
}

// A process that gets a signal takes no more clients, lets conns finish, and exits successfully.
// Conns that do not finish in time are reset; a second signal ends the process at once.
func TestSignals(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		for name, test := range map[string]func(t *testing.T, p *child, client, server conn){
			"finish": func(t *testing.T, p *child, client, server conn) {
				pass(t, client, server)
				require.NoError(t, client.Close())
				require.NoError(t, server.Close())
				assert.NoError(t, p.ended(t))
			},
			"second signal": func(t *testing.T, p *child, client, server conn) {
				require.NoError(t, p.Process.Signal(sig))
				var exit *exec.ExitError
				require.ErrorAs(t, p.ended(t), &exit)
				assert.Equal(t, sig, exit.Sys().(syscall.WaitStatus).Signal())
				assertCut(t, client, server)
			},
			"over": func(t *testing.T, p *child, client, server conn) {
				assert.NoError(t, p.ended(t))
				assertCut(t, client, server)
			},
		} {
			t.Run(fmt.Sprint(sig, " ", name), func(t *testing.T) {
				grace := "1m"
				if name == "over" {
					grace = "300ms"
				}
				backend, to := listen(t, "tcp")
				p := startChild(t, "-listen", "tcp://127.0.0.1:0", "-to", to.String(), "-grace", grace)
				client, server := connect(t, p.at), accept(t, backend)
				pass(t, client, server)
				require.NoError(t, p.Process.Signal(sig))
				require.Eventually(t, func() bool {
					c, err := p.at.dial(t.Context(), new(rdmanet.Dialer))
					if err == nil {
						reset(c)
					}
					return errors.Is(err, syscall.ECONNREFUSED)
				}, patience, time.Millisecond, "it takes nobody in")
				test(t, p, client, server)
			})
		}
	}
}

// assertCut checks that conns were reset instead of closed.
func assertCut(t *testing.T, conns ...conn) {
	t.Helper()
	for _, c := range conns {
		_, err := c.Read(make([]byte, 1))
		assert.ErrorIs(t, err, syscall.ECONNRESET)
	}
}

// However the process is killed, neither side takes that for the end of a stream.
func TestKilled(t *testing.T) {
	t.Setenv("RDMANET_PROVIDERS", testenv.Shared()[0])
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGHUP} {
		for _, way := range [][2]string{{"tcp", "tcp"}, {"tcp", "rdma"}, {"rdma", "tcp"}} {
			t.Run(fmt.Sprint(sig, " ", way[0], " to ", way[1]), func(t *testing.T) {
				backend, to := listen(t, way[1])
				p := startChild(t, "-listen", way[0]+"://127.0.0.1:0", "-to", to.String())
				client, server := connect(t, p.at), accept(t, backend)
				pass(t, client, server)
				half, halfServer := connect(t, p.at), accept(t, backend)
				require.NoError(t, half.CloseWrite())
				_, err := halfServer.Read(make([]byte, 1))
				require.Equal(t, io.EOF, err)
				require.NoError(t, p.Process.Signal(sig))
				assert.Error(t, p.ended(t))
				assertCut(t, client, server, half)
			})
		}
	}
}

// Bytes go over a Unix socket to another process, from there over the fabric to a
// proxy in this one, on to an echo server on TCP, and back.
func TestTwoProcesses(t *testing.T) {
	for _, provider := range testenv.Providers() {
		t.Run(provider, func(t *testing.T) {
			t.Setenv("RDMANET_PROVIDERS", provider)
			backend, to := listen(t, "tcp")
			fabric, _ := start(t, "rdma", &proxy{to: to})
			socket := anywhere(t, "unix")
			p := startChild(t, "-listen", socket.String(), "-to", fabric.String())
			client := connect(t, socket)
			server := accept(t, backend)
			go func() {
				_, _ = io.Copy(server, server)
				_ = server.Close()
			}()
			want := make([]byte, 8<<20)
			_, _ = rand.NewChaCha8([32]byte{}).Read(want)
			sent := make(chan error, 1)
			go func() {
				_, err := client.Write(want)
				sent <- errors.Join(err, client.CloseWrite())
			}()
			got, err := io.ReadAll(client)
			require.NoError(t, err)
			require.NoError(t, <-sent)
			assert.True(t, bytes.Equal(want, got), "%d bytes came back", len(got))
			require.NoError(t, p.Process.Signal(syscall.SIGTERM))
			assert.NoError(t, p.ended(t))
			assert.NoFileExists(t, socket.address)
		})
	}
}

// The page has the metrics of the proxy, the fabric and the process.
func TestMetrics(t *testing.T) {
	t.Setenv("RDMANET_PROVIDERS", testenv.Shared()[0])
	backend, to := listen(t, "rdma")
	p := startChild(t, "-listen", "tcp://127.0.0.1:0", "-to", to.String(), "-max-conns", "1", "-metrics", "127.0.0.1:0")
	client, server := connect(t, p.at), accept(t, backend)
	pass(t, client, server)
	assertReset(t, p.at)
	r, err := http.Get(p.metrics)
	require.NoError(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, r.StatusCode)
	for _, line := range []string{
		"fabricnet_proxy_conns 1", "fabricnet_proxy_conns_max 1",
		"fabricnet_proxy_sent_bytes_total 5", "fabricnet_proxy_received_bytes_total 5",
		`fabricnet_proxy_conns_ended_total{why="too many"} 1`, `fabricnet_proxy_conns_ended_total{why="done"} 0`,
		`fabricnet_sent_bytes_total{provider="` + testenv.Shared()[0] + `"} 5`, "fabricnet_proxy_log_lines_lost_total 0", "process_open_fds ", "go_goroutines ",
	} {
		assert.Contains(t, string(text), "\n"+line)
	}
	r, err = http.Post(p.metrics, "text/plain", bytes.NewReader(nil))
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	assert.Equal(t, http.StatusMethodNotAllowed, r.StatusCode)
	page, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.metrics, nil)
	require.NoError(t, err)
	page.Host = "evil.example"
	r, err = http.DefaultClient.Do(page)
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	assert.Equal(t, http.StatusForbidden, r.StatusCode, "for a page whose name is resolved to this address")

	problems, err := testutil.GatherAndLint((&proxy{lostLines: new(atomic.Uint64)}).registry())
	require.NoError(t, err)
	assert.Empty(t, problems)
}

// TestNothingStays: a program that ends in good order leaves nothing in shared memory, where its
// listener has opened an endpoint for the first peer.
func TestNothingStays(t *testing.T) {
	for range 3 {
		c := startChild(t, "--listen", "rdma://localhost:0", "--to", "tcp://localhost:1")
		files := func() []string {
			list, err := filepath.Glob(fmt.Sprintf("/dev/shm/*.%d-*", c.Process.Pid))
			require.NoError(t, err)
			return list
		}
		require.Eventually(t, func() bool { return len(files()) > 0 }, patience, time.Millisecond)
		time.Sleep(300 * time.Millisecond) // what is still being opened goes anyway
		require.NoError(t, c.Process.Signal(syscall.SIGTERM))
		require.NoError(t, <-c.exited)
		assert.Empty(t, files())
	}
}
