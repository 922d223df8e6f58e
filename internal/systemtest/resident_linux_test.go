//go:build linux && cgo && !race && !asan

package systemtest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime/metrics"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func init() {
	rdmatest.Roles["idle listener"], rdmatest.Roles["idle dialer"] = idleListener, idleDialer
	rdmatest.Roles["flood"], rdmatest.Roles["hoarder"] = flood, hoarder
}

// footprint is what a process has in memory, in bytes.
type footprint struct {
	Resident int64
	Go       int64 // of Resident, what Go has from the system
	Pool     rdmanet.MemoryStats
	Landing  int64 // landing memory, out of what is mapped
}

// footprintOf looks again until the pool's counters were the same before and after. Otherwise
// a mapping of a peer's ring could be in one figure and not in another.
func footprintOf(tr *rdmanet.Transport) (f footprint) {
	releaseUnused()
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	for stats := tr.Stats(); ; {
		f = footprint{Resident: resident(), Pool: stats.Memory}
		for _, p := range stats.Providers {
			f.Landing += p.LandingMemory
		}
		metrics.Read(s)
		f.Go = int64(s[0].Value.Uint64() - s[1].Value.Uint64())
		then := stats
		if stats = tr.Stats(); stats.Memory == then.Memory {
			return f
		}
	}
}

// reply reads a number from each line of its standard input. It calls do with the number,
// unless that is 0, and then prints what this process has in memory.
func reply(tr *rdmanet.Transport, do func(n int) error) error {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if n, err := strconv.Atoi(in.Text()); err != nil {
			return err
		} else if n > 0 {
			if err := do(n); err != nil {
				return err
			}
		}
		if err := json.NewEncoder(os.Stdout).Encode(footprintOf(tr)); err != nil {
			return err
		}
	}
	return tr.Close()
}

// observed is a process that runs reply.
type observed struct {
	stdin  io.WriteCloser
	stdout *bufio.Reader
}

func observe(t *testing.T, role, provider, addr string) (o observed) {
	t.Helper()
	o.stdin, o.stdout = rdmatest.Start(t, rdmatest.Process(t, role, provider, addr))
	return o
}

func (o observed) ask(t *testing.T, n int) (f footprint) {
	t.Helper()
	_, err := fmt.Fprintln(o.stdin, n)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal([]byte(rdmatest.Line(t, o.stdout)), &f))
	return f
}

// idleCost is the most that an idle conn may cost a process, in bytes.
const idleCost = 16 << 10

// idleTail is how much small data idleListener sends after idleJobs jobs, in bytes and in
// pieces of idlePiece.
const (
	idleJobs  = 2
	idleTail  = 12 * idlePiece
	idlePiece = 4 << 10
)

// serveEach listens and calls serve with each conn while it runs reply.
func serveEach(provider string, backlog int, serve func(net.Conn)) error {
	tr := new(rdmanet.Transport)
	lc := rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}, Backlog: backlog}
	l, err := lc.Listen(context.Background(), "rdma", testenv.Address())
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	go rdmatest.Serve(l, serve)
	return reply(tr, nil)
}

// idleListener takes jobs on each conn, then sends small data, and waits for the end.
func idleListener(provider, _ string) error {
	return serveEach(provider, rdmatest.ManyConns, func(c net.Conn) {
		defer c.Close()
		for range idleJobs {
			if err := rdmatest.TakeJob(c); err != nil {
				return
			}
		}
		for range idleTail / idlePiece {
			if _, err := c.Write(make([]byte, idlePiece)); err != nil {
				return
			}
		}
		_, _ = c.Read(make([]byte, 1))
	})
}

// idleDialer dials as many new conns as it is asked to, sends jobs over each, and keeps
// them. It reads once the jobs of all are done, and there is something to be read on each.
func idleDialer(provider, addr string) error {
	tr := new(rdmanet.Transport)
	d := &rdmanet.Dialer{Transport: tr, Providers: []string{provider}, Timeout: rdmatest.Patience}
	var conns []net.Conn
	return reply(tr, func(n int) error {
		first := len(conns)
		for range n {
			c, err := d.Dial("rdma", addr)
			if err != nil {
				return err
			}
			conns = append(conns, c)
		}
		err := inParallel(conns[first:], func(i int, c net.Conn) error {
			return errors.Join(rdmatest.SendJob(c, i, 100), rdmatest.SendJob(c, i, 512<<10))
		})
		return errors.Join(err, inParallel(conns[first:], func(_ int, c net.Conn) error {
			_, err := io.ReadFull(c, make([]byte, idleTail))
			return err
		}))
	})
}

// inParallel calls f with each conn, a few at a time.
func inParallel(conns []net.Conn, f func(i int, c net.Conn) error) error {
	const few = 16
	next, errs := make(chan int), make(chan error, len(conns))
	for range few {
		go func() {
			for i := range next {
				errs <- f(i, conns[i])
			}
		}()
	}
	for i := range conns {
		next <- i
	}
	close(next)
	var err error
	for range conns {
		err = errors.Join(err, <-errs)
	}
	return err
}

// TestResidentOfIdleConns: a thousand conns that have carried small and large data, and
// are idle now, take little memory in either process, Go's included.
func TestResidentOfIdleConns(t *testing.T) {
	for _, provider := range rdmatest.Providers {
		t.Run(provider, func(t *testing.T) {
			there := observe(t, "idle listener", provider, "")
			here := observe(t, "idle dialer", provider, rdmatest.Line(t, there.stdout))
			look := func() [2]footprint { return [...]footprint{here.ask(t, 0), there.ask(t, 0)} }
			here.ask(t, 1)
			rdmatest.Eventually(t, func() bool { f := look(); return f[0].Landing+f[1].Landing == 0 }, "the first is idle")
			before := look()
			here.ask(t, rdmatest.ManyConns)
			var after [2]footprint
			var each [2]int64
			assert.Eventually(t, func() bool {
				after = look()
				for i := range after {
					each[i] = (after[i].Resident - before[i].Resident) / rdmatest.ManyConns
				}
				return max(each[0], each[1]) <= idleCost && after[0].Landing+after[1].Landing == 0
			}, 2*rdmatest.Patience, 100*time.Millisecond, "what an idle conn costs the dialing and the listening side")
			t.Logf("%d bytes each for the dialing and the listening side; %+v before, %+v after", each, before, after)
			for _, o := range []observed{here, there} {
				require.NoError(t, o.stdin.Close())
			}
		})
	}
}

const (
	hoardLimit = 24 << 20
	hoardConns = 200
	// oneSlab is the size of the largest slab that is mapped at a time, except for Buffers
	// that ask for more.
	oneSlab = 4 << 20
)

// flood writes small data to each conn and then, once it has read something from it, writes for ever.
func flood(provider, _ string) error {
	return serveEach(provider, hoardConns, func(c net.Conn) {
		for range idleTail / idlePiece {
			if _, err := c.Write(make([]byte, idlePiece)); err != nil {
				break
			}
		}
		_, _ = c.Read(make([]byte, 1))
		writeForEver(c)
	})
}

func writeForEver(c net.Conn) {
	defer c.Close()
	for {
		if _, err := c.Write(rdmatest.JobData()); err != nil {
			return
		}
	}
}

// hoarder opens as many conns as it is asked to, or as many of them as it can. It closes them
// when a quarter of its limit has arrived and is unread, and opens a tenth as many again: both
// sides write to these, and now and then it reads from some. It takes and gives back all the
// Buffers that it can get.
func hoarder(provider, addr string) error {
	tr := &rdmanet.Transport{MemoryLimit: hoardLimit}
	d := &rdmanet.Dialer{Transport: tr, Providers: []string{provider}, Timeout: rdmatest.Patience}
	open := func(n int) (conns []*rdmanet.Conn, err error) {
		for range n {
			c, err := d.Dial("rdma", addr)
			if err != nil {
				return conns, err // there is no room for another
			}
			conns = append(conns, c.(*rdmanet.Conn))
		}
		return conns, nil
	}
	return reply(tr, func(n int) error {
		conns, err := open(n)
		if n == 1 {
			return err
		}
		err = until(func() bool {
			var unread uint64
			for _, c := range conns {
				unread += c.Info().SmallReceived
			}
			return unread > hoardLimit/4
		})
		for _, c := range conns {
			_ = c.SetLinger(0)
			_ = c.Close()
		}
		if conns, _ = open(n / 10); len(conns) == 0 || err != nil {
			return errors.Join(errors.New("no conns"), err)
		}
		for _, c := range conns {
			go writeForEver(c)
		}
		go hoard(conns)
		return nil
	})
}

func hoard(conns []*rdmanet.Conn) {
	rng := rand.New(rand.NewPCG(1, 1))
	var held []*rdmanet.Buffer
	for {
		c := conns[rng.IntN(len(conns))]
		b, err := c.AllocBuffer(1 + rng.IntN(1<<(10+rng.IntN(14))))
		switch {
		case err == nil:
			held = append(held, b)
		case len(held) > 0 && rng.IntN(4) == 0:
			i := rng.IntN(len(held))
			held[i].Release()
			held = slices.Delete(held, i, i+1)
		case rng.IntN(100) == 0:
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			_, _ = c.Read(make([]byte, 100<<10))
		}
	}
}

// TestResidentWithinLimit: whatever users and peers do, a process has no more memory than
// Transport.MemoryLimit and one slab, besides what it had with one conn, and Go's own. What it
// has mapped of a peer's rings is the peer's memory, but is no more than the limit, either.
func TestResidentWithinLimit(t *testing.T) {
	for _, provider := range rdmatest.Providers {
		t.Run(provider, func(t *testing.T) {
			there := observe(t, "flood", provider, "")
			here := observe(t, "hoarder", provider, rdmatest.Line(t, there.stdout))
			before := here.ask(t, 1)
			here.ask(t, hoardConns)
			var most footprint
			var growth int64
			for start := time.Now(); time.Since(start) < time.Duration(rdmatest.Rounds(5, 60))*time.Second; {
				now := here.ask(t, 0)
				own := func(f footprint) int64 { return f.Resident - f.Go - f.Pool.Foreign }
				if more := own(now) - own(before); more > growth {
					most, growth = now, more
				}
				assert.LessOrEqual(t, now.Pool.Foreign, int64(hoardLimit))
			}
			t.Logf("%d KiB more resident at most, at a limit of %d KiB; %+v before, %+v then", growth>>10, hoardLimit>>10, before, most)
			assert.LessOrEqual(t, growth, int64(hoardLimit+oneSlab))
			assert.Greater(t, most.Pool.Mapped, int64(hoardLimit/2), "it was not put to the test")
			assert.LessOrEqual(t, most.Pool.High, int64(hoardLimit))
		})
	}
}
