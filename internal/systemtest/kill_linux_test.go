//go:build linux && cgo

package systemtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// A victim moves data over victimConns conns in both directions, in writes of all
// sizes, until it is killed.
const victimConns = 4

func init() {
	rdmatest.Roles["victim client"], rdmatest.Roles["victim server"] = victimClient, victimServer
}

// traffic writes and reads for as long as the conn lasts. It sends the error that each
// direction ended with to ended.
func traffic(c net.Conn, seed uint64, ended chan<- error) {
	go func() {
		rng := rand.New(rand.NewPCG(seed, 1))
		buf := make([]byte, 300<<10)
		for {
			if _, err := c.Write(buf[:1+rng.IntN(1<<rng.IntN(19))%len(buf)]); err != nil {
				ended <- err
				return
			}
		}
	}()
	go func() {
		buf := make([]byte, 64<<10)
		for {
			if _, err := c.Read(buf); err != nil {
				ended <- err
				return
			}
		}
	}()
}

func victimClient(provider, addr string) error {
	d := rdmanet.Dialer{Providers: []string{provider}, Timeout: rdmatest.Patience}
	ended := make(chan error)
	for i := range victimConns {
		c, err := d.Dial("rdma", addr)
		if err != nil {
			return err
		}
		traffic(c, uint64(i), ended)
	}
	return <-ended
}

func victimServer(provider, _ string) error {
	lc := rdmanet.ListenConfig{Providers: []string{provider}}
	l, err := lc.Listen(context.Background(), "rdma", testenv.Address())
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	for i := uint64(0); ; i++ {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		traffic(c, i, make(chan error, 2))
	}
}

// server starts a process in a role that listens, and returns the address that it prints.
func server(t *testing.T, role, provider string) (cmd *exec.Cmd, addr string) {
	t.Helper()
	cmd = rdmatest.Process(t, role, provider, "")
	stdin, stdout := rdmatest.Start(t, cmd)
	t.Cleanup(func() { _ = stdin.Close() })
	return cmd, rdmatest.Line(t, stdout)
}

// bystander sends messages to a peer to which nothing happens, and which echoes them. It
// checks every byte that comes back, and notes the longest round trip.
type bystander struct {
	conn    net.Conn
	rounds  atomic.Int64
	longest atomic.Int64
	stop    chan struct{}
	done    sync.WaitGroup
	err     error
}

func newBystander(t *testing.T, d *rdmanet.Dialer, addr string) *bystander {
	t.Helper()
	c, err := d.DialContext(t.Context(), "rdma", addr)
	require.NoError(t, err)
	b := &bystander{conn: c, stop: make(chan struct{})}
	b.done.Go(func() { b.err = b.run() })
	return b
}

func (b *bystander) run() error {
	rng := rand.New(rand.NewPCG(1, 2))
	out, in := make([]byte, 100<<10), make([]byte, 100<<10)
	for {
		select {
		case <-b.stop:
			return nil
		case <-time.After(time.Millisecond):
		}
		n := 1 + rng.IntN(1<<rng.IntN(17))%len(out)
		for i := range out[:n] {
			out[i] = byte(rng.Uint32())
		}
		start := time.Now()
		if err := b.conn.SetDeadline(start.Add(rdmatest.Patience)); err != nil {
			return err
		}
		if _, err := b.conn.Write(out[:n]); err != nil {
			return err
		}
		if _, err := io.ReadFull(b.conn, in[:n]); err != nil {
			return err
		}
		if string(in[:n]) != string(out[:n]) {
			return errors.New("other bytes came back")
		}
		b.rounds.Add(1)
		b.longest.Store(max(b.longest.Load(), int64(time.Since(start))))
	}
}

// end checks that the bystander has noticed nothing.
func (b *bystander) end(t *testing.T) {
	t.Helper()
	close(b.stop)
	b.done.Wait()
	require.NoError(t, b.err, "the bystander's conn")
	require.NoError(t, b.conn.Close())
	t.Logf("bystander: %d round trips, the longest %v", b.rounds.Load(), time.Duration(b.longest.Load()))
}

// killed reports whether calls on a conn whose peer was killed may end with err.
func killed(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// resources is what a process uses. Peers that are killed must not leave it with more.
type resources struct {
	files, threads   int
	peers, endpoints int
	registered       int64
	foreign          int64
	goroutines       goleak.Option
	shm              []string
}

func take(t *testing.T, tr *rdmanet.Transport) resources {
	t.Helper()
	s := tr.Stats()
	return resources{
		len(rdmatest.OpenFiles(t)), threads(t), s.Peers, endpoints(s), s.Memory.Used, s.Memory.Foreign, goleak.IgnoreCurrent(), rdmatest.SharedMemoryOf(t, os.Getpid()),
	}
}

func endpoints(s rdmanet.TransportStats) (n int) {
	for _, p := range s.Providers {
		n += p.Endpoints
	}
	return n
}

func threads(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	return len(list)
}

// back waits until the process uses no more than r.
func (r resources) back(t *testing.T, tr *rdmanet.Transport) {
	t.Helper()
	assert.EventuallyWithT(t, func(c *assert.CollectT) {
		s := tr.Stats()
		assert.LessOrEqual(c, s.Peers, r.peers, "peers")
		assert.LessOrEqual(c, endpoints(s), r.endpoints+1, "endpoints, one of them for the next peer")
	}, rdmatest.Patience, 10*time.Millisecond)
	assert.EventuallyWithT(t, func(c *assert.CollectT) {
		tr.CloseIdle() // the endpoint for the next peer, which may be opened late
		assert.LessOrEqual(c, endpoints(tr.Stats()), r.endpoints, "endpoints")
		assert.LessOrEqual(c, len(rdmatest.OpenFiles(t)), r.files, "open files")
		assert.LessOrEqual(c, tr.Stats().Memory.Used, r.registered, "memory in use")
		assert.LessOrEqual(c, tr.Stats().Memory.Foreign, r.foreign, "memory of peers'")
		assert.Subset(c, r.shm, rdmatest.SharedMemoryOf(t, os.Getpid()), "names in /dev/shm") // other tests' processes leave some, too
	}, rdmatest.Patience, 10*time.Millisecond)
	goleak.VerifyNone(t, r.goroutines)
	// The runtime keeps threads: as many as have ever been in calls at the same time.
	assert.LessOrEqual(t, threads(t), r.threads+2*runtime.GOMAXPROCS(0)+4, "threads")
}

// idleLoad returns what fraction of a processor this process uses while nothing goes on.
func idleLoad(t *testing.T) float64 {
	t.Helper()
	used := func() time.Duration {
		var u syscall.Rusage
		require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	const span = 500 * time.Millisecond
	before := used()
	time.Sleep(span)
	return float64(used()-before) / float64(span)
}

// TestKilledClients and TestKilledServers kill peers in mid-transfer. The calls on their
// conns end, those on other conns do not, and nothing is left of the peers.
func TestKilledClients(t *testing.T) {
	for _, provider := range rdmatest.Providers {
		t.Run(provider, func(t *testing.T) { testKilled(t, provider, killClient) })
	}
}

func TestKilledServers(t *testing.T) {
	for _, provider := range rdmatest.Providers {
		t.Run(provider, func(t *testing.T) { testKilled(t, provider, killServer) })
	}
}

type killFunc func(_ *testing.T, _ *rdmanet.Transport, _ *rdmanet.Listener, provider string, after time.Duration) (pid int, took time.Duration)

func testKilled(t *testing.T, provider string, kill killFunc) {
	tr := new(rdmanet.Transport)
	rdmatest.Cleanly(t, tr)
	d := &rdmanet.Dialer{Transport: tr, Providers: []string{provider}, Timeout: rdmatest.Patience}
	_, addr := server(t, "echo", provider)
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}, Backlog: victimConns})
	by := newBystander(t, d, addr)
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	kill(t, tr, l, provider, time.Second) // after this, queues and staging memory have their final sizes, even on an emulated machine
	time.Sleep(50 * time.Millisecond)
	before := take(t, tr)
	var longest time.Duration
	times := rdmatest.Rounds(12, 200)
	started, killed := time.Now(), []int{}
	for range times {
		pid, took := kill(t, tr, l, provider, time.Duration(rng.IntN(20_000))*time.Microsecond)
		killed = append(killed, pid)
		longest = max(longest, took)
	}
	before.back(t, tr)
	rdmatest.Eventually(t, func() bool {
		left, err := rdmatest.RegionsOf(started, killed...)
		assert.NoError(t, err)
		return len(left) == 0
	}, "nothing of the killed is in /dev/shm")
	s := tr.Stats().Providers[provider]
	t.Logf("%d kills: the last call ended after %v at most; %d endpoints abandoned", times, longest, s.Abandoned)
	if provider != "shm" {
		assert.Zero(t, s.Abandoned)
	}
	by.end(t)
	if load := idleLoad(t); load > 0.2 {
		assert.Fail(t, "busy with nothing", "%.0f %% of a processor", 100*load)
	}
	require.NoError(t, l.Close())
}

// ends waits until the pending calls on conns whose peer was killed have ended, and returns
// how long that took. It checks their errors, and those of some more calls.
func ends(t *testing.T, conns []net.Conn, ended <-chan error) (took time.Duration) {
	t.Helper()
	start := time.Now()
	for range 2 * len(conns) {
		select {
		case err := <-ended:
			require.True(t, killed(err), "pending call: %v", err)
		case <-time.After(2 * time.Second):
			t.Fatal("a call on a conn whose peer was killed hangs")
		}
	}
	took = time.Since(start)
	for _, c := range conns {
		_, err := c.Write([]byte("x"))
		require.True(t, killed(err), "Write: %v", err)
		_, err = c.Read(make([]byte, 1))
		require.True(t, killed(err), "Read: %v", err)
		require.NoError(t, c.Close())
	}
	require.Less(t, time.Since(start), 2*time.Second)
	return took
}

func killClient(t *testing.T, _ *rdmanet.Transport, l *rdmanet.Listener, provider string, after time.Duration) (pid int, took time.Duration) {
	t.Helper()
	cmd := rdmatest.Process(t, "victim client", provider, l.Addr().String())
	require.NoError(t, cmd.Start())
	ended := make(chan error, 2*victimConns)
	var conns []net.Conn
	for i := range victimConns {
		c := rdmatest.Accept(t, l)
		traffic(c, uint64(i), ended)
		conns = append(conns, c)
	}
	time.Sleep(after)
	require.NoError(t, cmd.Process.Kill())
	took = ends(t, conns, ended)
	_ = cmd.Wait()
	return cmd.Process.Pid, took
}

func killServer(t *testing.T, tr *rdmanet.Transport, _ *rdmanet.Listener, provider string, after time.Duration) (pid int, took time.Duration) {
	t.Helper()
	return killServerWhen(t, tr, provider, func() { time.Sleep(after) })
}

func killServerWhen(t *testing.T, tr *rdmanet.Transport, provider string, wait func()) (pid int, took time.Duration) {
	t.Helper()
	cmd, addr := server(t, "victim server", provider)
	d := &rdmanet.Dialer{Transport: tr, Providers: []string{provider}, Timeout: rdmatest.Patience}
	ended := make(chan error, 2*victimConns)
	var conns []net.Conn
	for i := range victimConns {
		c, err := d.DialContext(t.Context(), "rdma", addr)
		require.NoError(t, err)
		traffic(c, uint64(i), ended)
		conns = append(conns, c)
	}
	wait()
	require.NoError(t, cmd.Process.Kill())
	took = ends(t, conns, ended)
	_ = cmd.Wait()
	return cmd.Process.Pid, took
}
