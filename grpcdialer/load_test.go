package grpcdialer_test

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/interop/grpc_testing"

	"github.com/seed202c38ff/fabricnet/grpcdialer"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

var soak = flag.Bool("soak", false, "repeat what depends on timing as often as make soak does")

// serverVar makes the test binary a server over the provider that it names.
const serverVar = "GRPCDIALER_TEST_SERVER"

func TestMain(m *testing.M) {
	flag.Parse()
	if provider := os.Getenv(serverVar); provider != "" {
		if err := serveAlone(provider); err != nil {
			fmt.Fprintln(os.Stderr, "server:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serveAlone is an echo server until its standard input ends.
func serveAlone(provider string) error {
	lc := rdmanet.ListenConfig{Providers: []string{provider}, Backlog: 1024}
	l, err := lc.Listen(context.Background(), "rdma", testenv.Address())
	if err != nil {
		return err
	}
	s := grpc.NewServer(append(grpcdialer.TuningServerOptions(), grpc.MaxRecvMsgSize(maxMessage))...)
	grpc_testing.RegisterBenchmarkServiceServer(s, echo{})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	fmt.Println(l.Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	s.Stop()
	if e := <-served; err == nil {
		err = e
	}
	return err
}

// otherProcess starts a server in another process.
func otherProcess(t *testing.T, provider string) (addr string) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), serverVar+"="+provider, "GORACE=atexit_sleep_ms=100")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close()
		assert.NoError(t, cmd.Wait(), "the server")
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(line)
}

// TestManyCallsInFlight: hundreds of conns with dozens of calls in flight each,
// and a few with hundreds, all complete, whether they share what was met at one
// rendezvous or have each their own.
func TestManyCallsInFlight(t *testing.T) {
	providers, calls := []string{"shm", "tcp;ofi_rxm"}, 1
	if *soak {
		providers, calls = append(providers, testenv.Native), 20
	}
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			addr := otherProcess(t, provider)
			for _, tt := range []struct {
				conns, inFlight int
				alone           bool
			}{
				{256, 64, false},
				{16, 512, false},
				{16, 64, true}, // fewer than Transport.MaxShmPeers
			} {
				t.Run(fmt.Sprintf("%d x %d, alone %v", tt.conns, tt.inFlight, tt.alone), func(t *testing.T) {
					transport := new(rdmanet.Transport)
					t.Cleanup(func() { assert.NoError(t, transport.Close()) })
					d := &rdmanet.Dialer{Providers: []string{provider}, Transport: transport, DisableReuse: tt.alone}
					clients := make([]grpc_testing.BenchmarkServiceClient, tt.conns)
					for i := range clients {
						clients[i] = client(t, "rdma://"+addr, d)
						repeat(t, clients[i], 1, 0) // gRPC has a time limit for the first
					}
					var all sync.WaitGroup
					for _, c := range clients {
						for range tt.inFlight {
							all.Go(func() { repeat(t, c, calls, 8<<10) })
						}
					}
					all.Wait()
					peers := 1
					if tt.alone {
						peers = tt.conns
					}
					assert.Equal(t, peers, transport.Stats().Peers)
				})
			}
		})
	}
}

// repeat makes calls one after the other, and checks the answers.
func repeat(t *testing.T, c grpc_testing.BenchmarkServiceClient, times, size int) {
	t.Helper()
	for range times {
		want := request(size)
		got, err := c.UnaryCall(t.Context(), want)
		if !assert.NoError(t, err) {
			return
		}
		assert.True(t, bytes.Equal(want.GetPayload().GetBody(), got.GetPayload().GetBody()), "payloads differ")
	}
}
