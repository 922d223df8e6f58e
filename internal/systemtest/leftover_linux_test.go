//go:build linux && cgo

package systemtest

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/ofifabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// dialForever dials a listener that never answers.
func dialForever(provider, addr string) error {
	d := rdmanet.Dialer{Providers: []string{provider}}
	_, err := d.Dial("rdma", addr)
	return err
}

// holdEndpoint keeps open an endpoint that no peer knows of, so that its region keeps its name,
// until its standard input ends.
func holdEndpoint(provider, _ string) error {
	if _, err := ofifabric.New().Open(provider, netip.MustParseAddr(testenv.Host())); err != nil {
		return err
	}
	fmt.Println("open")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

func init() {
	rdmatest.Roles["dial forever"], rdmatest.Roles["hold endpoint"] = dialForever, holdEndpoint
}

// TestLeftovers: a process that is killed during a handshake leaves names in /dev/shm.
// The next process that uses shared memory removes them, but not those of a process that
// is merely stopped.
func TestLeftovers(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	cmd := rdmatest.Process(t, "dial forever", "shm", silent.Addr().String())
	require.NoError(t, cmd.Start())
	var mine []string
	require.Eventually(t, func() bool {
		mine = pagesOf(t, cmd.Process.Pid)
		return len(mine) == 5 // the page, and two bells for each side
	}, rdmatest.Patience, time.Millisecond)
	rdmatest.Halt(t, cmd)
	useShm(t)
	assert.Subset(t, pages(t), mine, "the process is stopped, not dead")
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	useShm(t)
	require.Eventually(t, func() bool { return len(without(mine, pages(t))) == len(mine) }, rdmatest.Patience, time.Millisecond)
}

// TestLeftRegion is TestLeftovers for memory that libfabric has named.
func TestLeftRegion(t *testing.T) {
	cmd := rdmatest.Process(t, "hold endpoint", "shm", "")
	started := time.Now()
	stdin, stdout := rdmatest.Start(t, cmd)
	defer stdin.Close()
	rdmatest.Line(t, stdout) // it is open
	mine := func() []string {
		names, err := rdmatest.RegionsOf(started, cmd.Process.Pid)
		assert.NoError(t, err)
		return names
	}
	require.Len(t, mine(), 1)
	useShm(t)
	assert.Len(t, mine(), 1, "the process lives")
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	useShm(t) // unless another package's test has, and has removed the name
	require.Eventually(t, func() bool { return len(mine()) == 0 }, rdmatest.Patience, time.Millisecond)
}

// TestRegionsOfPeersHaveNoNames: once two processes have met over shared memory, what they share has no
// name any more, and nothing is left if they are killed. Only an endpoint that is kept ready for the
// next peer has one.
func TestRegionsOfPeersHaveNoNames(t *testing.T) {
	started := time.Now()
	tr := new(rdmanet.Transport)
	rdmatest.Cleanly(t, tr)
	pids := []int{os.Getpid()}
	for range 3 {
		cmd, addr := server(t, "echo", "shm")
		c := dial(t, &rdmanet.Dialer{Transport: tr, Providers: []string{"shm"}, Timeout: rdmatest.Patience}, addr)
		defer func() { assert.NoError(t, c.Close()) }()
		pids = append(pids, cmd.Process.Pid)
	}
	for _, pid := range pids {
		rdmatest.Eventually(t, func() bool {
			names, err := rdmatest.RegionsOf(started, pid)
			assert.NoError(t, err)
			return len(names) <= 1
		}, "the names of peers' regions go")
	}
}

// useShm starts a process and dials it over shared memory.
func useShm(t *testing.T) {
	t.Helper()
	tr := new(rdmanet.Transport)
	defer func() { assert.NoError(t, tr.Close()) }()
	_, addr := server(t, "echo", "shm")
	c := dial(t, &rdmanet.Dialer{Transport: tr, Providers: []string{"shm"}, Timeout: rdmatest.Patience}, addr)
	require.NoError(t, c.Close())
}

func pages(t *testing.T) (names []string) {
	t.Helper()
	list, err := os.ReadDir("/dev/shm")
	require.NoError(t, err)
	for _, e := range list {
		if strings.HasPrefix(e.Name(), "fabricnet-") {
			names = append(names, e.Name())
		}
	}
	return names
}

// pagesOf lists the page of a living process, and what has a name that begins with the page's.
func pagesOf(t *testing.T, pid int) []string {
	t.Helper()
	return slices.DeleteFunc(rdmatest.SharedMemoryOf(t, pid), func(name string) bool {
		guard, _, _ := strings.Cut(name, ".")
		info, err := os.Stat("/dev/shm/" + guard)
		return err != nil || info.Size() == 0 // an empty file guards regions
	})
}

func without(list, others []string) (left []string) {
	skip := map[string]bool{}
	for _, o := range others {
		skip[o] = true
	}
	for _, name := range list {
		if !skip[name] {
			left = append(left, name)
		}
	}
	return left
}
