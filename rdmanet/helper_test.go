package rdmanet_test

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed202c38ff/fabricnet/internal/shmdir"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

const patience = 10 * time.Second

// cleanly closes a Transport when the test is over, and checks that no goroutines, files,
// shared memory or budget are left. It must be called first.
func cleanly(t *testing.T, tr *rdmanet.Transport) { t.Helper(); cleanlyBut(t, tr, 0) }

// cleanlyBut is like cleanly, but lets libfabric leave a few files open.
func cleanlyBut(t *testing.T, tr *rdmanet.Transport, few int) {
	t.Helper()
	goroutines := goleak.IgnoreCurrent()
	files, shm := len(openFiles(t)), sharedMemory(t)
	t.Cleanup(func() {
		require.NoError(t, tr.Close())
		goleak.VerifyNone(t, goroutines)
		// libfabric closes sockets late. What a process that was killed, or has just ended
		// without Close, leaves in /dev/shm disappears when another process cleans up.
		assert.EventuallyWithT(t, func(c *assert.CollectT) {
			open := openFiles(t)
			if len(open) > files+few { // Go keeps the pipes of splice(2) until the second garbage collection
				runtime.GC()
			}
			assert.LessOrEqual(c, len(open), files+few, "open files: %v", open)
			shmdir.Clean(shmdir.Dir)
			assert.Subset(c, shm, sharedMemory(t), "names in /dev/shm")
		}, patience, 10*time.Millisecond)
		assert.Zero(t, tr.Stats().Memory.Used, "memory budget")
		assert.Zero(t, tr.Stats().Peers)
	})
}

func openFiles(t *testing.T) (targets []string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0") // makes Go open its own files, too
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range list {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		// libfabric opens each RDMA device once and keeps it open.
		if err != nil || !strings.HasPrefix(target, "/dev/infiniband/") && target != "anon_inode:[infinibandevent]" {
			targets = append(targets, target)
		}
	}
	return targets
}

// sharedMemory lists the names in /dev/shm that belong to this process or to no living
// process.
func sharedMemory(t *testing.T) []string {
	t.Helper()
	list, err := os.ReadDir("/dev/shm")
	require.NoError(t, err)
	names := []string{}
	others := heldByOthers(t)
	for _, e := range list {
		if !strings.HasPrefix(e.Name(), "fabricnet-") {
			continue
		}
		guard, _, _ := strings.Cut(e.Name(), ".")
		if info, err := os.Stat("/dev/shm/" + guard); err == nil && others[inode(info)] {
			continue // another process's
		}
		if _, err := os.Lstat("/dev/shm/" + e.Name()); err == nil {
			names = append(names, e.Name())
		}
	}
	return names
}

// regionsOf lists the names of these processes in libfabric's shared memory. It leaves out
// those from before since: an earlier process with the same PID may have left some.
func regionsOf(since time.Time, pids ...int) (names []string, err error) {
	for _, pid := range pids {
		list, err := filepath.Glob(fmt.Sprintf("/dev/shm/fabricnet-*.%d-*", pid))
		if err != nil {
			return nil, err
		}
		for _, name := range list {
			if info, err := os.Stat(name); err == nil && info.ModTime().After(since) {
				names = append(names, name)
			}
		}
	}
	return names, nil
}

func onReal(t *testing.T, test func(t *testing.T, tr *rdmanet.Transport, providers []string)) {
	t.Helper()
	for _, name := range realProviders {
		t.Run(name, func(t *testing.T) {
			tr := new(rdmanet.Transport)
			cleanly(t, tr)
			test(t, tr, []string{name})
		})
	}
}

func listen(t *testing.T, lc rdmanet.ListenConfig) *rdmanet.Listener {
	t.Helper()
	l, err := lc.Listen(t.Context(), "rdma", testenv.Address())
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l.(*rdmanet.Listener)
}

// meet dials l and accepts the conn.
func meet(t *testing.T, d *rdmanet.Dialer, l *rdmanet.Listener) (client, server *rdmanet.Conn) {
	t.Helper()
	c, err := d.DialContext(t.Context(), "rdma", l.Addr().String())
	require.NoError(t, err)
	return c.(*rdmanet.Conn), accept(t, l)
}

func accept(t *testing.T, l *rdmanet.Listener) *rdmanet.Conn {
	t.Helper()
	require.NoError(t, l.SetDeadline(time.Now().Add(patience)))
	s, err := l.Accept()
	require.NoError(t, err)
	return s.(*rdmanet.Conn)
}

// echo checks that a conn works in both directions.
func echo(t *testing.T, client, server net.Conn) {
	t.Helper()
	for _, x := range [][2]net.Conn{{client, server}, {server, client}} {
		_, err := x[0].Write([]byte("hello"))
		require.NoError(t, err)
		buf := make([]byte, 5)
		require.NoError(t, x[1].SetReadDeadline(time.Now().Add(patience)))
		_, err = io.ReadFull(x[1], buf)
		require.NoError(t, err)
		require.Equal(t, "hello", string(buf))
		require.NoError(t, x[1].SetReadDeadline(time.Time{}))
	}
}

// closeAll closes conns at the same time, since each side waits for the other.
func closeAll(t *testing.T, conns ...net.Conn) {
	t.Helper()
	var wg sync.WaitGroup
	for _, c := range conns {
		wg.Go(func() { assert.NoError(t, c.Close()) })
	}
	wg.Wait()
}

// eventually waits until other goroutines have made condition true.
func eventually(t *testing.T, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, patience, time.Millisecond, what)
}

type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)

// listenAt is listen for any address of this host. It also returns the port.
func listenAt(t *testing.T, lc rdmanet.ListenConfig, address string) (l *rdmanet.Listener, port string) {
	t.Helper()
	ln, err := lc.Listen(t.Context(), "rdma", address)
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	_, port, err = net.SplitHostPort(ln.Addr().String())
	require.NoError(t, err)
	return ln.(*rdmanet.Listener), port
}

// visit dials, closes the conn again, and returns its ConnInfo.
func visit(t *testing.T, d *rdmanet.Dialer, l *rdmanet.Listener, network, address string) rdmanet.ConnInfo {
	t.Helper()
	c, err := d.Dial(network, address)
	require.NoError(t, err)
	closeAll(t, c, accept(t, l))
	return c.(*rdmanet.Conn).Info()
}

func writeRandom(t *testing.T, name string, size int64) []byte {
	t.Helper()
	f, err := os.Create(name)
	require.NoError(t, err)
	defer f.Close()
	sum := sha256.New()
	_, err = io.CopyN(io.MultiWriter(f, sum), rand.NewChaCha8([32]byte{1}), size)
	require.NoError(t, err)
	return hash.Hash(sum).Sum(nil)
}

// goMemory returns how much memory Go has from the system, in bytes. Unlike resident, it
// does not count what the race detector needs.
func goMemory() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Sys - m.HeapReleased)
}
