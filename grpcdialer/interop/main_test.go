package interop

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/grpclog"

	"github.com/seed202c38ff/fabricnet/grpcdialer"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// If serverVar is set in the environment, the test binary is an interop server over the provider
// that it names, with TLS credentials if tlsVar is set.
const (
	serverVar = "INTEROP_TEST_SERVER"
	tlsVar    = "INTEROP_TEST_TLS"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if provider := os.Getenv(serverVar); provider != "" {
		if err := serveAlone(provider, os.Getenv(tlsVar) != ""); err != nil {
			fmt.Fprintln(os.Stderr, "server:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	grpclog.SetLoggerV2(panics{grpclog.NewLoggerV2(io.Discard, io.Discard, os.Stderr)})
	os.Exit(m.Run())
}

// failure is the value that a failing case panics with instead of ending the process.
type failure string

// panics is a logger that panics on a fatal message. That is how gRPC-Go's cases report
// failures; grpclog would end the process afterwards.
type panics struct{ grpclog.LoggerV2 }

func (panics) Fatal(args ...any)                 { panic(failure(fmt.Sprint(args...))) }
func (panics) Fatalln(args ...any)               { panic(failure(fmt.Sprintln(args...))) }
func (panics) Fatalf(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) }

// run runs one of gRPC-Go's cases.
func run(t *testing.T, test func()) {
	t.Helper()
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			t.Fatal(string(r))
		default:
			panic(r)
		}
	}()
	test()
}

// A case that fails must be noticed.
func TestFailuresOfCasesAreSeen(t *testing.T) {
	for _, fail := range []func(){
		func() { grpclog.Component("interop").Fatalf("failed: %d", 1) },
		func() { grpclog.Fatal("failed: ", 1) },
		func() { grpclog.Fatalf("failed: %d", 1) },
	} {
		func() {
			defer func() { assert.Contains(t, recover(), "failed: 1") }()
			fail()
		}()
	}
}

// startServer starts an interop server in another process, which ends with the
// test, and returns the addresses of its two listeners.
func startServer(t *testing.T, provider string, secure bool) (addrs []string) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), serverVar+"="+provider, "GORACE=atexit_sleep_ms=100")
	if secure {
		cmd.Env = append(cmd.Env, tlsVar+"=1")
	}
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
	addrs = strings.Fields(line)
	require.Len(t, addrs, 2)
	return addrs
}

// certificates returns a server's certificate, and the config with which clients check it. They
// come from net/http/httptest, and so are the same in each process.
func certificates() (server, client *tls.Config) {
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	return &tls.Config{Certificates: s.TLS.Certificates}, &tls.Config{RootCAs: pool, ServerName: "example.com"}
}

// options returns the options of a client over one provider.
func options(t *testing.T, provider string, secure bool) []grpc.DialOption {
	t.Helper()
	transport := new(rdmanet.Transport)
	t.Cleanup(func() { assert.NoError(t, transport.Close()) })
	creds := insecure.NewCredentials()
	if secure {
		_, client := certificates()
		creds = credentials.NewTLS(client)
	}
	return []grpc.DialOption{
		grpcdialer.DialOption(&rdmanet.Dialer{Providers: []string{provider}, Transport: transport}),
		grpcdialer.WithResolver(),
		grpc.WithTransportCredentials(creds),
	}
}

// dial returns a client that is closed when the test ends.
func dial(t *testing.T, target string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient(target, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, cc.Close()) })
	return cc
}

// withPatience returns a context that bounds the wait for something that must happen.
func withPatience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}
