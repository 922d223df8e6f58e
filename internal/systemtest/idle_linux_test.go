//go:build linux && cgo

package systemtest

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// The timers of a process with quietPeers idle peers wake it less often than quietWakes times
// a second.
const (
	quietPeers = 1000
	quietWakes = 50
)

func init() {
	rdmatest.Roles["quiet listener"], rdmatest.Roles["quiet dialer"], rdmatest.Roles["ticker"] = quietListener, quietDialer, ticker
}

// quietListener accepts conns and leaves them alone until its standard input ends.
func quietListener(provider, _ string) error {
	lc := rdmanet.ListenConfig{Providers: []string{provider}, Backlog: quietPeers, MaxPeers: quietPeers, MaxPeersPerHost: quietPeers}
	l, err := lc.Listen(context.Background(), "rdma", testenv.Address())
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	conns := make([]net.Conn, quietPeers)
	for i := range conns {
		if conns[i], err = l.Accept(); err != nil {
			return err
		}
	}
	defer runtime.KeepAlive(l)
	return stayQuiet(conns)
}

// quietDialer dials the conns, each over a control connection of its own, and leaves them alone, too.
func quietDialer(provider, addr string) error {
	d := rdmanet.Dialer{Providers: []string{provider}, DisableReuse: true}
	conns := make([]net.Conn, quietPeers)
	for i := range conns {
		var err error
		if conns[i], err = d.Dial("rdma", addr); err != nil {
			return fmt.Errorf("dial %d: %w", i, err)
		}
	}
	return stayQuiet(conns)
}

func stayQuiet(conns []net.Conn) error {
	defer runtime.KeepAlive(conns) // what is dropped is closed
	fmt.Println(rdmanet.DefaultTransport.Stats().Peers)
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// ticker has one timer, which wakes it quietWakes times a second, and does nothing else.
func ticker(string, string) error {
	go func() {
		for range time.Tick(time.Second / quietWakes) {
		}
	}()
	fmt.Println("ticking")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// usage is what a process has used so far.
type usage struct {
	sleeps int // how often its threads went to sleep; each time but the last, they were woken
	cpu    time.Duration
}

func usageOf(t *testing.T, pid int) (u usage) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	require.NoError(t, err)
	for _, task := range tasks {
		status, err := os.ReadFile(task + "/status")
		require.NoError(t, err)
		_, rest, found := strings.Cut(string(status), "\nvoluntary_ctxt_switches:")
		require.True(t, found)
		n, err := strconv.Atoi(strings.Fields(rest)[0])
		require.NoError(t, err)
		u.sleeps += n
		sched, err := os.ReadFile(task + "/schedstat")
		require.NoError(t, err)
		ns, err := strconv.ParseInt(strings.Fields(string(sched))[0], 10, 64)
		require.NoError(t, err)
		u.cpu += time.Duration(ns)
	}
	return u
}

// watched returns what each process uses within d.
func watched(t *testing.T, d time.Duration, pids ...int) []usage {
	t.Helper()
	list := make([]usage, len(pids))
	for i, pid := range pids {
		list[i] = usageOf(t, pid)
	}
	time.Sleep(d)
	for i, pid := range pids {
		now := usageOf(t, pid)
		list[i] = usage{now.sleeps - list[i].sleeps, now.cpu - list[i].cpu}
	}
	return list
}

// TestQuietTimers: the timers of a process with a thousand idle peers wake it less often than
// quietWakes times a second. Go's threads go to sleep several times for each wake-up, so the
// process is compared with one that does nothing but wake up that often. The other side is
// stopped meanwhile, since what comes from there wakes the process, too: if each peer is a
// process of its own, two hundred heartbeats a second come over TCP, and as many over the fabric.
func TestQuietTimers(t *testing.T) {
	start := func(role, addr string) (pid int, says func() string) {
		cmd := rdmatest.Process(t, role, testenv.Native, addr)
		_, stdout := rdmatest.Start(t, cmd)
		return cmd.Process.Pid, func() string { return rdmatest.Line(t, stdout) }
	}
	listener, says := start("quiet listener", "")
	dialer, dialed := start("quiet dialer", says())
	tick, ticks := start("ticker", "")
	ticks()
	require.Equal(t, strconv.Itoa(quietPeers), dialed())
	require.Equal(t, strconv.Itoa(quietPeers), says())
	const window, tries = 2 * time.Second, 8
	for try := 1; ; try++ { // in the first seconds, what the conns have used is given back
		both := watched(t, window, listener, dialer)
		require.NoError(t, syscall.Kill(dialer, syscall.SIGSTOP))
		alone := watched(t, window, listener, tick)
		require.NoError(t, syscall.Kill(dialer, syscall.SIGCONT))
		t.Logf("in %v: the listener %+v and the dialer %+v; the listener with a dialer that is stopped %+v, a process with one timer %+v",
			window, both[0], both[1], alone[0], alone[1])
		if alone[0].sleeps < alone[1].sleeps {
			return
		}
		if try == tries {
			assert.Less(t, alone[0].sleeps, alone[1].sleeps)
			return
		}
	}
}
