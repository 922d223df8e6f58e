package rdmatest

import (
	"bufio"
	"cmp"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// The test binary starts itself as the other process. These variables say which role it
// has, over which provider, and at which address its peer is. They do not begin with RDMANET_,
// since a setuid program has a role, too.
const (
	RoleVar     = "FABRICNET_TEST_ROLE"
	providerVar = "FABRICNET_TEST_PROVIDER"
	addrVar     = "FABRICNET_TEST_ADDR"
)

// Roles maps the names of roles to what another process does in them.
var Roles = map[string]func(provider, addr string) error{}

// Surround runs before everything else in every process. Files whose tests and roles need
// more than a process of their own, such as a network namespace, replace it.
var Surround = func() error { return nil }

// Main runs the tests or, in another process, its role.
func Main(m *testing.M) {
	flag.Parse()
	err := Surround()
	role := os.Getenv(RoleVar)
	if err == nil && role != "" {
		play, ok := Roles[role]
		if !ok {
			err = fmt.Errorf("no role %q in this package", role)
		} else {
			err = play(os.Getenv(providerVar), os.Getenv(addrVar))
		}
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

// Process returns a command that runs the test binary in another role.
func Process(t *testing.T, role, provider, addr string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe)
	// The race detector lets a process go on for a second after os.Exit, which to its
	// peer is no exit at all.
	cmd.Env = append(os.Environ(), RoleVar+"="+role, providerVar+"="+provider, addrVar+"="+addr,
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

// Start starts a process, and returns its standard input and output.
func Start(t *testing.T, cmd *exec.Cmd) (stdin io.WriteCloser, stdout *bufio.Reader) {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return stdin, bufio.NewReader(out)
}

// Line waits for the next line that a process prints.
func Line(t *testing.T, stdout *bufio.Reader) string {
	t.Helper()
	text, err := stdout.ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(text)
}

// Halt stops a process and waits until it has stopped.
func Halt(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	_, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, status.Stopped())
}
