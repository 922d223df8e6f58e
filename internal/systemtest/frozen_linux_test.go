//go:build linux && cgo

package systemtest

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// frozenFor is how long a peer must be silent to count as dead in these tests.
const frozenFor = 3 * time.Second

// frozen starts a peer process that echoes and that the test may stop, and returns what it takes to dial it.
func frozen(t *testing.T, provider string) (tr *rdmanet.Transport, cmd *exec.Cmd, d *rdmanet.Dialer, addr string) {
	t.Helper()
	tr = &rdmanet.Transport{DeadAfter: frozenFor, HeartbeatInterval: frozenFor / 6}
	rdmatest.Cleanly(t, tr)
	cmd, addr = server(t, "echo", provider)
	t.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGCONT) })
	d = &rdmanet.Dialer{Transport: tr, Providers: []string{provider}, Timeout: rdmatest.Patience}
	return tr, cmd, d, addr
}

func dial(t *testing.T, d *rdmanet.Dialer, addr string) net.Conn {
	t.Helper()
	c, err := d.DialContext(t.Context(), "rdma", addr)
	require.NoError(t, err)
	return c
}

// TestFrozenPeer: while a peer is stopped, deadlines work and nothing ends by itself. If
// it continues in time, nothing is lost.
func TestFrozenPeer(t *testing.T) {
	for _, provider := range rdmatest.Providers {
		t.Run(provider, func(t *testing.T) {
			_, cmd, d, addr := frozen(t, provider)
			c := dial(t, d, addr)
			sent := pseudorandom(8 << 20)
			received := make(chan []byte, 1)
			rdmatest.Halt(t, cmd)
			stopped := time.Now()

			require.NoError(t, c.SetDeadline(stopped.Add(200*time.Millisecond)))
			_, err := c.Read(make([]byte, 1))
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			n, err := c.Write(sent)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			require.Less(t, n, len(sent))
			require.Less(t, time.Since(stopped), time.Second)

			require.NoError(t, c.SetDeadline(time.Time{}))
			go func() {
				got := make([]byte, len(sent))
				n, err := io.ReadFull(c, got)
				assert.NoError(t, err)
				received <- got[:n]
			}()
			time.Sleep(time.Until(stopped.Add(frozenFor / 2)))
			require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
			_, err = c.Write(sent[n:])
			require.NoError(t, err)
			require.Equal(t, sent, <-received)
			require.NoError(t, c.Close())
		})
	}
}

// TestFrozenPeerIsDeclaredDead: a stopped peer counts as dead after the configured time, and not before.
func TestFrozenPeerIsDeclaredDead(t *testing.T) {
	for _, provider := range rdmatest.Providers {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			tr := &rdmanet.Transport{DeadAfter: frozenFor, HeartbeatInterval: frozenFor / 6}
			defer func() { assert.NoError(t, tr.Close()) }()
			cmd, addr := server(t, "echo", provider)
			d := &rdmanet.Dialer{Transport: tr, Providers: []string{provider}, Timeout: rdmatest.Patience}
			c, idle := dial(t, d, addr), dial(t, d, addr)
			time.Sleep(frozenFor + time.Second)
			e := &echoed{c: c}
			require.NoError(t, e.write(100))
			require.NoError(t, e.rest(), "it is well, and says so often enough")
			alive := heartbeat(tr) // on a busy host the previous one may have come late
			rdmatest.Halt(t, cmd)
			stopped := time.Now()
			_, err := c.Write(pseudorandom(8 << 20))
			require.ErrorIs(t, err, syscall.ECONNRESET)
			assert.GreaterOrEqual(t, time.Since(alive), frozenFor)
			assert.Less(t, time.Since(stopped), frozenFor+2*time.Second)
			_, err = idle.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ECONNRESET)
			require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))

			again := dial(t, d, addr) // it is alive again, and a peer like any other
			_, err = again.Write([]byte("hello"))
			require.NoError(t, err)
			buf := make([]byte, 5)
			_, err = io.ReadFull(again, buf)
			require.NoError(t, err)
			rdmatest.CloseAll(t, c, idle, again)
		})
	}
}

// heartbeat waits for the next heartbeat of the only peer, and returns a time shortly before it.
func heartbeat(tr *rdmanet.Transport) time.Time {
	before, had := time.Now(), tr.Stats().ControlReceived
	for {
		now := time.Now()
		if tr.Stats().ControlReceived != had {
			return before
		}
		before = now
		time.Sleep(time.Millisecond)
	}
}

// TestCloseTellsOfLoss: Close returns an error if the peer is killed, or given up, while Close waits
// for it to have everything.
func TestCloseTellsOfLoss(t *testing.T) {
	for _, provider := range rdmatest.Providers {
		t.Run(provider, func(t *testing.T) {
			_, cmd, d, addr := frozen(t, provider)
			c, s := dial(t, d, addr), dial(t, d, addr)
			rdmatest.Halt(t, cmd)
			_, err := c.Write([]byte("lost"))
			require.NoError(t, err)
			_, err = s.Write([]byte("lost"))
			require.NoError(t, err)
			require.NoError(t, s.(*rdmanet.Conn).SetLinger(0))
			require.NoError(t, c.(*rdmanet.Conn).SetLinger(60))
			closed := make(chan error, 1)
			go func() { closed <- c.Close() }()
			if provider != rdmatest.Providers[0] { // over the first, the peer is given up instead
				require.NoError(t, cmd.Process.Kill())
			}
			assert.ErrorIs(t, <-closed, syscall.ECONNRESET)
			assert.NoError(t, s.Close(), "which does not care")
		})
	}
}

// TestFrozenAtAnyMoment stops a peer again and again in mid-transfer. Either nothing is
// lost, or the peer was stopped while it held a lock in shared memory: then the deadline
// ends the conn, and that is counted.
func TestFrozenAtAnyMoment(t *testing.T) {
	for _, provider := range rdmatest.Providers {
		t.Run(provider, func(t *testing.T) {
			tr, cmd, d, addr := frozen(t, provider)
			rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
			times, resets := rdmatest.Rounds(20, 500), uint64(0)
			e := &echoed{c: dial(t, d, addr)}
			for range times {
				ended, seed := make(chan error, 1), rng.Uint64()
				go func() { ended <- e.run(seed) }()
				time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
				rdmatest.Halt(t, cmd)
				require.NoError(t, e.c.SetDeadline(time.Now().Add(50*time.Millisecond)))
				err := <-ended
				require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
				if errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, syscall.ECONNRESET) {
					require.NoError(t, e.c.SetDeadline(time.Now().Add(rdmatest.Patience)))
					if err = e.rest(); err == nil {
						continue
					}
				}
				require.ErrorIs(t, err, syscall.ECONNRESET)
				resets++
				require.Equal(t, resets, tr.Stats().Providers["shm"].Abandoned)
				require.NoError(t, e.c.Close())
				e = &echoed{c: dial(t, d, addr)}
			}
			t.Logf("stopped %d times, %d times while it held a lock", times, resets)
			if provider == "shm" {
				assert.Positive(t, tr.Stats().Providers[provider].Copies.Mapped, "some of them in mid-copy")
			}
			require.NoError(t, e.c.Close())
		})
	}
}

// echoed is a stream to a peer that sends everything back, and counts and checks its bytes.
type echoed struct {
	c       net.Conn
	sent    atomic.Uint64
	got     uint64
	out, in [64 << 10]byte
}

func (e *echoed) byteAt(pos uint64) byte { return byte((pos * 0x9e3779b97f4a7c15) >> 56) }

// run writes and reads at the same time, until both end with an error.
func (e *echoed) run(seed uint64) error {
	rng := rand.New(rand.NewPCG(seed, 0))
	read := make(chan error, 1)
	go func() {
		for {
			if err := e.read(len(e.in)); err != nil {
				read <- err
				return
			}
		}
	}()
	for {
		if err := e.write(1 + rng.IntN(1<<rng.IntN(17))%len(e.out)); err != nil {
			return errors.Join(err, <-read)
		}
	}
}

func (e *echoed) write(n int) error {
	sent := e.sent.Load()
	for i := range e.out[:n] {
		e.out[i] = e.byteAt(sent + uint64(i))
	}
	n, err := e.c.Write(e.out[:n])
	e.sent.Add(uint64(n))
	return err
}

func (e *echoed) read(most int) error {
	n, err := e.c.Read(e.in[:most])
	for i, b := range e.in[:n] {
		if b != e.byteAt(e.got+uint64(i)) {
			return fmt.Errorf("wrong byte at %d", e.got+uint64(i))
		}
	}
	e.got += uint64(n)
	return err
}

// rest reads what has been sent and has not come back yet.
func (e *echoed) rest() error {
	for e.got < e.sent.Load() {
		if err := e.read(int(min(uint64(len(e.in)), e.sent.Load()-e.got))); err != nil {
			return err
		}
	}
	return nil
}

func pseudorandom(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}
