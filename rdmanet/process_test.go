package rdmanet_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// The test binary starts itself as the other process. These variables say which role it
// has, over which provider, and at which address its peer is.
const (
	roleVar     = "RDMANET_TEST_ROLE"
	providerVar = "RDMANET_TEST_PROVIDER"
	addrVar     = "RDMANET_TEST_ADDR"
)

// roles maps the names of roles to what another process does in them.
var roles = map[string]func(provider, addr string) error{
	"exit while writing":    leave(exitWhileWriting),
	"return while writing":  leave(writeOn),
	"exit while reading":    leave(exitWhileReading),
	"exit after CloseWrite": leave(exitAfterCloseWrite),

	"cycles":         cycles,
	"jobs":           jobsListener,
	"relay":          relay,
	"write and exit": writeAndExit,
	"read and exit":  readAndExit,
}

// surround runs before everything else in every process. Files whose tests and roles need
// more than a process of their own, such as a network namespace, replace it.
var surround = func() error { return nil }

func TestMain(m *testing.M) {
	flag.Parse()
	err := surround()
	role := os.Getenv(roleVar)
	if err == nil && role != "" {
		err = roles[role](os.Getenv(providerVar), os.Getenv(addrVar))
	}
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, cmp.Or(role, "tests")+":", err)
		os.Exit(1)
	case role != "":
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// process returns a command that runs the test binary in another role.
func process(t *testing.T, role, provider, addr string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe)
	// The race detector lets a process go on for a second after os.Exit, which to its
	// peer is no exit at all.
	cmd.Env = append(os.Environ(), roleVar+"="+role, providerVar+"="+provider, addrVar+"="+addr,
		"GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	cmd.Stderr = os.Stderr
	t.Cleanup(func() {
		if cmd.Process != nil && cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return cmd
}

// startProcess starts a process, and returns its standard input and output.
func startProcess(t *testing.T, cmd *exec.Cmd) (stdin io.WriteCloser, stdout *bufio.Reader) {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return stdin, bufio.NewReader(out)
}

// line waits for the next line that a process prints.
func line(t *testing.T, stdout *bufio.Reader) string {
	t.Helper()
	text, err := stdout.ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(text)
}

// relay listens, and joins every conn that it accepts to a new one to addr. It ends when
// its standard input does.
func relay(provider, addr string) error {
	lc := rdmanet.ListenConfig{Providers: []string{provider}}
	l, err := lc.Listen(context.Background(), "rdma", testenv.Address())
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go relayConn(in.(*rdmanet.Conn), provider, addr)
		}
	}()
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func relayConn(in *rdmanet.Conn, provider, addr string) {
	defer in.Close()
	d := rdmanet.Dialer{Providers: []string{provider}, Timeout: patience}
	nc, err := d.Dial("rdma", addr)
	if err != nil {
		return
	}
	out := nc.(*rdmanet.Conn)
	defer out.Close()
	var wg sync.WaitGroup
	for _, c := range [][2]*rdmanet.Conn{{in, out}, {out, in}} {
		wg.Go(func() {
			if _, err := c[0].WriteTo(c[1]); err != nil {
				// One side is gone: the other must not go on.
				_ = c[0].CloseRead()
			}
			_ = c[1].CloseWrite()
		})
	}
	wg.Wait()
}

// acrossProcesses makes pairs of conns whose bytes pass through another process.
func acrossProcesses(t *testing.T, tr *rdmanet.Transport, provider string) pipeFunc {
	t.Helper()
	l := listen(t, rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}})
	cmd := process(t, "relay", provider, l.Addr().String())
	stdin, stdout := startProcess(t, cmd)
	t.Cleanup(func() {
		_ = stdin.Close()
		assert.NoError(t, cmd.Wait())
	})
	addr := line(t, stdout)
	d := &rdmanet.Dialer{Transport: tr, Providers: []string{provider}, Timeout: patience}
	return func() (client, server *rdmanet.Conn) {
		t.Helper()
		c, err := d.DialContext(t.Context(), "rdma", addr)
		require.NoError(t, err)
		return c.(*rdmanet.Conn), accept(t, l)
	}
}

// TestAcrossProcesses runs the conformance suite through a second process.
func TestAcrossProcesses(t *testing.T) {
	for _, provider := range realProviders {
		t.Run(provider, func(t *testing.T) {
			tr := new(rdmanet.Transport)
			cleanly(t, tr)
			pipe := acrossProcesses(t, tr, provider)
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				a, b := pipe()
				return a, b, func() {
					_ = a.Close()
					_ = b.Close()
				}, nil
			})
			for name, test := range map[string]func(t *testing.T, a, b *rdmanet.Conn){
				"deadline before data": testDeadlineFirst,
				"instant wake":         testInstantWake,
				"empty calls":          testEmptyCalls,
				"half close":           testHalfClose,
				"contiguous writes":    testContiguous,
				"partial write":        testPartialWrite,
				"copying":              testCopying,
			} {
				t.Run(name, func(t *testing.T) {
					a, b := pipe()
					test(t, a, b)
					_ = a.Close()
					_ = b.Close()
				})
			}
		})
	}
}

const exitSize = 1 << 20

func exitData() []byte {
	data := make([]byte, exitSize)
	for i := range data {
		data[i] = byte(i * i >> 7)
	}
	return data
}

// writeAndExit writes a mebibyte, closes the conn, and exits without closing the Transport.
func writeAndExit(provider, addr string) error {
	d := rdmanet.Dialer{Providers: []string{provider}, Timeout: patience}
	c, err := d.Dial("rdma", addr)
	if err != nil {
		return err
	}
	if _, err := c.Write(exitData()); err != nil {
		return err
	}
	if err := c.Close(); err != nil {
		return err
	}
	os.Exit(0)
	return nil
}

// TestWriteCloseExit: what was written before Close arrives whole, although the process
// exits at once.
func TestWriteCloseExit(t *testing.T) {
	want := exitData()
	meetProcesses(t, rounds(100, 1000), "write and exit", func(t *testing.T, i int, cmd *exec.Cmd, c net.Conn) {
		if i%2 == 0 { // read while it writes, or after it has gone
			require.NoError(t, cmd.Wait())
		}
		require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
		got, err := io.ReadAll(c)
		require.NoError(t, err, "round %d", i)
		require.True(t, bytes.Equal(want, got), "round %d: %d bytes", i, len(got))
		require.NoError(t, c.Close())
		if i%2 != 0 {
			require.NoError(t, cmd.Wait())
		}
	})
}

// meetProcesses starts that many processes, one after the other and over each provider, to dial a
// listener, and calls meet with each accepted conn.
func meetProcesses(t *testing.T, times int, role string, meet func(t *testing.T, i int, cmd *exec.Cmd, c net.Conn)) {
	for _, provider := range realProviders {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			tr := new(rdmanet.Transport)
			defer func() { assert.NoError(t, tr.Close()) }()
			l := listen(t, rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}})
			for i := range times {
				cmd := process(t, role, provider, l.Addr().String())
				require.NoError(t, cmd.Start())
				meet(t, i, cmd, accept(t, l))
			}
		})
	}
}

// readAndExit reads everything, closes the conn, and exits without closing the Transport.
func readAndExit(provider, addr string) error {
	d := rdmanet.Dialer{Providers: []string{provider}, Timeout: patience}
	c, err := d.Dial("rdma", addr)
	if err != nil {
		return err
	}
	got, err := io.ReadAll(c)
	if err == nil && len(got) != exitSize {
		err = fmt.Errorf("%d bytes", len(got))
	}
	if err := errors.Join(err, c.Close()); err != nil {
		return err
	}
	os.Exit(0)
	return nil
}

// TestReadCloseExit: a process that has read everything may exit, and the writer's Close
// knows that all of it has arrived.
func TestReadCloseExit(t *testing.T) {
	meetProcesses(t, rounds(20, 1000), "read and exit", func(t *testing.T, i int, cmd *exec.Cmd, c net.Conn) {
		_, err := c.Write(exitData())
		require.NoError(t, err, "round %d", i)
		require.NoError(t, c.Close(), "round %d", i)
		require.NoError(t, cmd.Wait())
	})
}
