//go:build linux && cgo && hosts

package systemtest

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// container is what a process on this host has to itself. With the zero container it
// shares everything, like any other process.
type container struct {
	namespaces uintptr // CLONE_NEW...
	proc       bool    // a /proc that shows its PID namespace
	subset     bool    // a /proc that shows processes only
	hidden     bool    // a /proc that hides the processes of others (hidepid)
	shm        string  // the size of a /dev/shm of its own, "" for this host's
	uid        int
	gid        int  // 0: the same number as uid
	undumpable bool // it cannot be traced (PR_SET_DUMPABLE), like any process that has changed its user
	noMemfd    bool // a seccomp filter forbids memfd_create(2)
}

// containerVar tells a process which container it is to set up for itself.
const containerVar = "RDMANET_TEST_CONTAINER"

// process returns the command that runs the test binary in another role in container k.
func (k container) process(t *testing.T, role, providers, addr string) *exec.Cmd {
	t.Helper()
	cmd := rdmatest.Process(t, role, providers, addr)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: k.namespaces}
	if k.namespaces&unix.CLONE_NEWUSER != 0 { // with the same user and group IDs
		all := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1 << 16}}
		cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = all, all
	}
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%t %t %t %q %d %d %t %t", containerVar, k.proc, k.subset, k.hidden, k.shm, k.uid, k.gid, k.undumpable, k.noMemfd))
	return cmd
}

// furnish sets up, within this process, the container that it was started in.
func furnish() error {
	var k container
	if _, err := fmt.Sscanf(os.Getenv(containerVar), "%t %t %t %q %d %d %t %t", &k.proc, &k.subset, &k.hidden, &k.shm, &k.uid, &k.gid, &k.undumpable, &k.noMemfd); err != nil {
		return nil // not in a container
	}
	var errs []error
	if k.proc || k.subset || k.hidden || k.shm != "" {
		errs = append(errs, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	}
	if k.proc {
		errs = append(errs, unix.Mount("proc", "/proc", "proc", 0, ""))
	}
	if k.subset {
		errs = append(errs, unix.Mount("proc", "/proc", "proc", 0, "subset=pid"))
	}
	if k.hidden {
		errs = append(errs, unix.Mount("proc", "/proc", "proc", 0, "hidepid=2"))
	}
	if k.shm != "" {
		errs = append(errs, unix.Mount("tmpfs", "/dev/shm", "tmpfs", 0, "size="+k.shm))
	}
	if k.noMemfd {
		errs = append(errs, forbid(unix.SYS_MEMFD_CREATE))
	}
	if k.uid != 0 {
		errs = append(errs, unix.Setgid(cmp.Or(k.gid, k.uid)), unix.Setuid(k.uid))
	}
	if !k.undumpable {
		errs = append(errs, unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0))
	}
	return errors.Join(errs...)
}

// forbid makes a system call fail with EPERM in all threads of this process.
func forbid(number uint32) error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: number},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, err := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if err != 0 {
		return os.NewSyscallError("seccomp", err)
	}
	return nil
}

func init() { rdmatest.Roles["caller"] = callOut }

// callOut dials, and prints how long that took in milliseconds and the provider, or 0 and the
// error if no provider works. Then it sends and receives, checks what arrives, and stays until
// its standard input ends.
func callOut(providers, addr string) error {
	d := rdmanet.Dialer{Providers: rdmatest.ProviderList(providers), Timeout: rdmatest.Patience}
	start := time.Now()
	c, err := d.Dial("rdma", addr)
	if errors.Is(err, rdmanet.ErrNoProvider) || errors.Is(err, rdmanet.ErrProviderUnavailable) {
		fmt.Println(0, err)
		return nil
	}
	if err != nil {
		return err
	}
	conn := c.(*rdmanet.Conn)
	fmt.Println(time.Since(start).Milliseconds(), conn.Info().Provider)
	o := rdmatest.Order{Duty: rdmatest.Exchange, Key: 2, Size: 16 << 20}
	if _, err := c.Write(o.Encode()); err != nil {
		return err
	}
	if err := o.CarryOut(conn, o.Key+1, rdmatest.Patience); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// startCaller starts a process that calls callOut and stays until the test ends. It returns
// the provider that it got, or the error's text, and how long the dial took.
func startCaller(t *testing.T, cmd *exec.Cmd) (provider string, took time.Duration) {
	t.Helper()
	stdin, stdout := rdmatest.Start(t, cmd)
	t.Cleanup(func() {
		_ = stdin.Close()
		assert.NoError(t, cmd.Wait(), "the bytes")
	})
	ms, provider, _ := strings.Cut(rdmatest.Line(t, stdout), " ")
	n, err := strconv.Atoi(ms)
	require.NoError(t, err)
	return provider, time.Duration(n) * time.Millisecond
}

// TestContainers: processes of one host use shared memory wherever it works, and only
// there. Data of any size arrives, and otherwise the next provider takes over without delay.
func TestContainers(t *testing.T) {
	const pids = unix.CLONE_NEWPID | unix.CLONE_NEWNS
	for name, tt := range map[string]struct {
		container
		one, both string // the provider if one side is in such a container, and if both are, each in one of its own
		reason    string // why a dial gets no shared memory if one side is in such a container, or both are
	}{
		"none":                    {container{}, "shm", "shm", ""},
		"mounts":                  {container{namespaces: unix.CLONE_NEWNS}, "shm", "shm", ""},
		"memory":                  {container{namespaces: unix.CLONE_NEWNS, shm: "256m"}, testenv.Native, testenv.Native, "no such file or directory"},
		"little memory":           {container{namespaces: unix.CLONE_NEWNS, shm: "8m"}, testenv.Native, testenv.Native, "shm"},
		"user":                    {container{uid: 65534}, testenv.Native, "shm", "different users"},
		"users":                   {container{namespaces: unix.CLONE_NEWUSER}, testenv.Native, testenv.Native, "'s files: permission denied (same user, group and capabilities"},
		"a user that was changed": {container{uid: 65534, undumpable: true}, testenv.Native, testenv.Native, ""},
		"hidden processes":        {container{namespaces: unix.CLONE_NEWNS, hidden: true, uid: 65534}, testenv.Native, "shm", "different users"},
		"hidden, and changed":     {container{namespaces: unix.CLONE_NEWNS, hidden: true, uid: 65534, undumpable: true}, testenv.Native, testenv.Native, ""},
		"no shared files":         {container{noMemfd: true}, testenv.Native, testenv.Native, "no shared memory: memfd_create"},
		"no boot ID":              {container{namespaces: unix.CLONE_NEWNS, subset: true}, "shm", "shm", ""},
		"no boot ID, memory":      {container{namespaces: unix.CLONE_NEWNS, subset: true, shm: "256m"}, testenv.Native, testenv.Native, "cannot tell its host: open /proc/sys/kernel/random/boot_id: no such file or directory"},
		"processes":               {container{namespaces: pids, proc: true}, testenv.Native, testenv.Native, "PID namespaces"},
		"processes, foreign proc": {container{namespaces: unix.CLONE_NEWPID}, testenv.Native, testenv.Native, "PID namespaces"},
		"everything but memory":   {container{namespaces: pids | unix.CLONE_NEWUSER | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS, proc: true}, testenv.Native, testenv.Native, "PID namespaces"},
	} {
		for side, ends := range map[string]struct{ listener, dialer container }{
			"listener": {tt.container, container{}},
			"dialer":   {container{}, tt.container},
			"both":     {tt.container, tt.container},
		} {
			t.Run(name+"/"+side, func(t *testing.T) {
				want, reason := tt.one, tt.reason
				if side == "both" {
					want = tt.both
				}
				addr := rdmatest.Listening(t, ends.listener.process(t, "counterpart", "shm,"+testenv.Native, ""))
				provider, took := startCaller(t, ends.dialer.process(t, "caller", "shm,"+testenv.Native, addr))
				assert.Equal(t, want, provider)
				assert.Less(t, took, rdmatest.Patience/2, "what a provider costs that does not answer")
				if want == testenv.Native && side != "both" {
					err, _ := startCaller(t, ends.dialer.process(t, "caller", "shm", addr))
					assert.Contains(t, err, reason)
				}
			})
		}
	}
}

// TestContainersGroups: processes of one user but of two groups may not open each other's files, and
// have no shared memory.
func TestContainersGroups(t *testing.T) {
	one, other := container{uid: testenv.StrangerUID}, container{uid: testenv.StrangerUID, gid: testenv.StrangerUID - 1}
	addr := rdmatest.Listening(t, one.process(t, "counterpart", "shm,"+testenv.Native, ""))
	provider, _ := startCaller(t, other.process(t, "caller", "shm,"+testenv.Native, addr))
	assert.Equal(t, testenv.Native, provider)
	err, _ := startCaller(t, other.process(t, "caller", "shm", addr))
	assert.Contains(t, err, "'s files: permission denied (same user, group and capabilities")
}

// TestContainersNetwork: network namespaces of one machine, though they look like several hosts, share memory.
func TestContainersNetwork(t *testing.T) {
	h := cabled(t)
	port := h.counterpart("")
	d := dialer(t)
	addr := net.JoinHostPort(far4, port)
	c := rdmatest.Give(t, d, addr, rdmatest.Order{Duty: rdmatest.Sink})
	assert.Equal(t, "shm", c.Info().Provider)
	require.NoError(t, c.Close())
	trade(t, d, addr, 4, 4<<20)
}

// TestContainersSameNumber: two processes with the same PID, in PID namespaces that share
// /dev/shm, do not take each other's memory for their own.
func TestContainersSameNumber(t *testing.T) {
	k := container{namespaces: unix.CLONE_NEWPID | unix.CLONE_NEWNS, proc: true}
	for range 2 {
		stdin, stdout := rdmatest.Start(t, k.process(t, "hold endpoint", "shm", ""))
		defer stdin.Close()
		require.Equal(t, "open", rdmatest.Line(t, stdout))
	}
}
