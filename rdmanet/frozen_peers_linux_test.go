//go:build linux && cgo

package rdmanet_test

import (
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func init() {
	rdmatest.Roles["narrow clients"] = func(provider, addr string) error {
		return rdmatest.DialAndObey(provider, addr, narrow)
	}
}

// narrow makes the buffers of all sockets of this process small, so that what is sent to a
// stopped peer waits in the provider.
func narrow() error {
	list, err := os.ReadDir("/proc/self/fd")
	for _, e := range list {
		if fd, err := strconv.Atoi(e.Name()); err == nil {
			for _, option := range []int{syscall.SO_RCVBUF, syscall.SO_SNDBUF} {
				_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, option, 64<<10) // most files are not sockets
			}
		}
	}
	return err
}

// freeze stops one more process, for the rest of the test, while as much as possible is
// written to it, and waits until it counts as dead.
func freeze(t *testing.T, l *rdmanet.Listener, provider string) {
	t.Helper()
	const conns = 8
	cmd := rdmatest.Process(t, "narrow clients", provider, l.Addr().String())
	cmd.Env = append(cmd.Env, rdmatest.ConnsVar+"="+strconv.Itoa(conns))
	require.NoError(t, cmd.Start())
	var list []*rdmanet.Conn
	for range conns {
		c := rdmatest.Accept(t, l)
		rdmatest.Instruct(t, c, rdmatest.Order{Duty: rdmatest.Sink})
		list = append(list, c)
	}
	for _, c := range list { // large, so that there are landing rings
		_, err := c.Write(make([]byte, 256<<10))
		require.NoError(t, err)
	}
	require.NoError(t, narrow())
	rdmatest.Halt(t, cmd)
	var writers sync.WaitGroup
	for _, c := range list {
		writers.Go(func() {
			for {
				if _, err := c.Write(make([]byte, 4<<20)); err != nil {
					assert.ErrorIs(t, err, syscall.ECONNRESET)
					return
				}
			}
		})
	}
	writers.Wait()
	for _, c := range list {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}

// TestFrozenPeersOneAfterAnother: each frozen peer holds part of its endpoint for good. Yet a
// healthy peer that was there before them still writes as fast, and finds as many slots free.
func TestFrozenPeersOneAfterAnother(t *testing.T) {
	for _, provider := range testenv.Shared() {
		t.Run(provider, func(t *testing.T) {
			tr := &rdmanet.Transport{DeadAfter: time.Second}
			defer func() { assert.NoError(t, tr.Close()) }()
			healthy, cmd := rdmatest.Clients(t, tr, provider, 2)
			require.NoError(t, narrow())
			rdmatest.Instruct(t, healthy[0], rdmatest.Order{Duty: rdmatest.Answer})
			rdmatest.Instruct(t, healthy[1], rdmatest.Order{Duty: rdmatest.Sink})
			// Another peer, on an untouched endpoint, shows what rate is possible.
			untouched := new(rdmanet.Transport)
			defer func() { assert.NoError(t, untouched.Close()) }()
			other, otherCmd := rdmatest.Clients(t, untouched, provider, 1)
			rdmatest.Instruct(t, other[0], rdmatest.Order{Duty: rdmatest.Sink})
			require.NoError(t, narrow())
			rate := func(c *rdmanet.Conn) float64 {
				start, n := time.Now(), 0
				for time.Since(start) < 100*time.Millisecond {
					m, err := c.Write(rdmatest.Noise()[:64<<10])
					require.NoError(t, err)
					n += m
				}
				return float64(n) / time.Since(start).Seconds()
			}
			unused := rdmanet.FreeOf(healthy[0])
			rate(healthy[1])
			var free rdmanet.Free
			rdmatest.Eventually(t, func() bool { // until what was written has left
				free = rdmanet.FreeOf(healthy[0])
				return free.Operations == unused.Operations && free.SendSlots == unused.SendSlots
			}, "a quiet endpoint")
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}})
			times := rdmatest.Rounds(5, 200)
			for i := range times {
				freeze(t, l, provider)
				if !rdmatest.Answers(t, healthy[0]) {
					t.Fatalf("after %d frozen peers", i+1)
				}
			}
			var now rdmanet.Free
			assert.Eventually(t, func() bool {
				now = rdmanet.FreeOf(healthy[0])
				return now.SendSlots >= free.SendSlots && now.StageChunks >= free.StageChunks && now.Operations >= free.Operations*7/8
			}, rdmatest.Patience, 10*time.Millisecond)
			s := tr.Stats()
			t.Logf("%d frozen peers: free %+v before and %+v after; %d endpoints, %d of them stale; %d MiB of memory in use",
				times, free, now, s.Providers[provider].Endpoints, s.Providers[provider].Stale, s.Memory.Used>>20)
			if times >= 50 {
				assert.NotZero(t, s.Providers[provider].Stale, "the first endpoint")
			}
			assert.LessOrEqual(t, s.Providers[provider].Endpoints, 3, "one is stale, one is about to be, one is about to go")
			assert.Zero(t, s.PeersRefused)
			rdmatest.Compare(t, rdmatest.Rounds(3, 15), 0.7, func() float64 { return rate(other[0]) }, func() float64 { return rate(healthy[1]) })
			rdmatest.CloseAll(t, healthy[0], healthy[1], other[0])
			assert.NoError(t, cmd.Wait())
			assert.NoError(t, otherCmd.Wait())
		})
	}
}
