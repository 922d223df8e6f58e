//go:build linux && cgo && hosts

package systemtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Two hosts are two network namespaces with a cable between them. The tests run in one
// of them, which is this host, and start the far host's processes from there. The
// namespaces have no names, so the kernel removes each one along with its last process,
// however that ends. `make test-hosts` runs all of this, as root.

// insideVar is set in processes that are in a network namespace of their own already.
const insideVar = "RDMANET_TEST_INSIDE"

// The hosts' cable, and their addresses and names.
const (
	device       = "cable0"
	near4, far4  = "10.77.0.1", "10.77.0.2"
	near6, far6  = "fd77::1", "fd77::2"
	absent       = "10.77.0.3" // no host has this address
	defaultMTU   = 1500
	hostsFile    = "127.0.0.1 localhost\n" + far4 + " far four.far\n" + far6 + " far six.far\n"
	listenOnBoth = "::"
	testHostVar  = "RDMANET_TEST_HOST" // see package testenv
)

func init() {
	rdmatest.Surround = func() error {
		if os.Getenv(insideVar) == "" {
			return moveIn()
		}
		if os.Getenv(rdmatest.RoleVar) == "" {
			return settle()
		}
		return furnish()
	}
}

// moveIn starts the tests again, in namespaces of their own, and exits with their exit code.
func moveIn() error {
	if os.Geteuid() != 0 {
		return errors.New("the tests of several hosts make network namespaces: they must be run by root, as in `sudo make test-hosts`")
	}
	for _, tool := range []string{"ip", "nft", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("the tests of several hosts need %q, of iproute2, nftables or util-linux (./scripts/deps.sh hosts): %w", tool, err)
		}
	}
	runtime.LockOSThread() // Pdeathsig refers to the thread that starts the process
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideVar+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	if err := cmd.Run(); cmd.ProcessState == nil {
		return fmt.Errorf("a network namespace: %w", err)
	}
	os.Exit(cmd.ProcessState.ExitCode())
	return nil
}

// settle prepares this host: its loopback device, and the hosts' names, also for all
// processes that are started from here.
func settle() error {
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("ip link set lo up: %w: %s", err, out)
	}
	names := filepath.Join(os.TempDir(), "hosts-"+strconv.Itoa(os.Getpid()))
	if err := os.WriteFile(names, []byte(hostsFile), 0o644); err != nil { //nolint:gosec // everybody reads it
		return err
	}
	err := unix.Mount(names, "/etc/hosts", "", unix.MS_BIND, "")
	return errors.Join(err, os.Remove(names))
}

// farHost is the host at the other end of the cable.
type farHost struct {
	t   *testing.T
	pid int // of a process there
}

// otherHost makes the far host, without a cable.
func otherHost(t *testing.T) *farHost {
	t.Helper()
	stay := exec.Command("cat") // until its input ends, at the latest when this process does
	stay.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNET}
	stdin, _ := rdmatest.Start(t, stay)
	t.Cleanup(func() {
		_ = stdin.Close()
		assert.NoError(t, stay.Wait())
	})
	h := &farHost{t, stay.Process.Pid}
	h.there("ip", "link", "set", "lo", "up")
	return h
}

// cabled makes the far host, and a cable to it.
func cabled(t *testing.T) *farHost {
	t.Helper()
	h := otherHost(t)
	h.here("ip", "link", "add", device, "index", nearIndex, "type", "veth", "peer", "name", device, "index", farIndex, "netns", strconv.Itoa(h.pid))
	t.Cleanup(func() { h.here("ip", "link", "delete", device) })
	h.address()
	return h
}

// address gives both ends of the cable their addresses.
func (h *farHost) address() {
	h.t.Helper()
	for _, end := range []struct {
		run    func(...string) string
		v4, v6 string
	}{{h.here, near4, near6}, {h.there, far4, far6}} {
		end.run("ip", "address", "add", end.v4+"/24", "dev", device)
		end.run("ip", "address", "add", end.v6+"/64", "dev", device, "nodad")
	}
	h.mtu(defaultMTU, defaultMTU)
	h.plug(true)
}

// mtu sets the MTU of each end, in bytes.
func (h *farHost) mtu(near, far int) {
	h.t.Helper()
	h.here("ip", "link", "set", device, "mtu", strconv.Itoa(near))
	h.there("ip", "link", "set", device, "mtu", strconv.Itoa(far))
}

// plug connects the far end of the cable, or disconnects it. Then the far host knows that
// there is no way, while this one sends into the void.
func (h *farHost) plug(in bool) {
	h.t.Helper()
	state := map[bool]string{true: "up", false: "down"}[in]
	h.there("ip", "link", "set", device, state)
	h.here("ip", "link", "set", device, "up")
	if !in {
		return
	}
	// The kernel takes a moment to notice, and libfabric looks at the device's state.
	running := regexp.MustCompile("state (UP|UNKNOWN) ")
	for _, run := range []func(...string) string{h.here, h.there} {
		require.Eventually(h.t, func() bool { return running.MatchString(run("ip", "link", "show", device)) },
			rdmatest.Patience, 10*time.Millisecond, "the cable")
	}
}

// here and there run a command on this host and on the far one.
func (h *farHost) here(args ...string) (output string) {
	h.t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	require.NoError(h.t, err, "%q: %s", args, out)
	return string(out)
}

func (h *farHost) there(args ...string) (output string) {
	h.t.Helper()
	return h.here(append(h.enter(), args...)...)
}

// enter returns what to put before a command to run it on the far host.
func (h *farHost) enter() []string {
	return []string{"nsenter", "--net=" + h.namespace(), "--"}
}

func (h *farHost) namespace() string { return fmt.Sprintf("/proc/%d/ns/net", h.pid) }

// process returns a command that runs the test binary in another role on the far host. If
// the role listens, it does so on all addresses.
func (h *farHost) process(role, providers, addr string) *exec.Cmd {
	h.t.Helper()
	cmd := rdmatest.Process(h.t, role, providers, addr)
	cmd.Args = append(h.enter(), cmd.Path)
	cmd.Path, cmd.Err = exec.LookPath(cmd.Args[0])
	cmd.Env = append(cmd.Env, testHostVar+"="+listenOnBoth)
	return cmd
}
