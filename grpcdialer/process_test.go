package grpcdialer_test

import (
	"bufio"
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
	"google.golang.org/grpc/interop/grpc_testing"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// If these are set in the environment, the test binary is a server over the provider, and at the
// address, that they name.
const (
	serverVar  = "GRPCDIALER_TEST_SERVER"
	addressVar = "GRPCDIALER_TEST_ADDRESS"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if provider := os.Getenv(serverVar); provider != "" {
		if err := serveAlone(provider, os.Getenv(addressVar)); err != nil {
			fmt.Fprintln(os.Stderr, "server:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serveAlone runs an echo server until standard input ends.
func serveAlone(provider, address string) error {
	lc := rdmanet.ListenConfig{Providers: []string{provider}, Backlog: 1024}
	l, err := lc.Listen(context.Background(), "rdma", address)
	if err != nil {
		return err
	}
	s := newServer()
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

// process is a server in a process of its own.
type process struct {
	addr  string
	cmd   *exec.Cmd
	stdin io.Closer
	ended sync.Once
}

// startServer starts a server in another process, which ends with the test.
func startServer(t *testing.T, provider, address string) *process {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), serverVar+"="+provider, addressVar+"="+address, "GORACE=atexit_sleep_ms=100")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p := &process{cmd: cmd, stdin: stdin}
	t.Cleanup(func() {
		p.ended.Do(func() {
			_ = stdin.Close()
			assert.NoError(t, cmd.Wait(), "the server")
		})
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	p.addr = strings.TrimSpace(line)
	return p
}

// kill ends the process at once, as a crash would.
func (p *process) kill(t *testing.T) {
	t.Helper()
	p.ended.Do(func() {
		require.NoError(t, p.cmd.Process.Kill())
		assert.ErrorContains(t, p.cmd.Wait(), "killed")
		_ = p.stdin.Close()
	})
}
