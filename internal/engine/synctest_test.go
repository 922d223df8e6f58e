package engine

import (
	"context"
	"io"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// virtualConn is virtual with a conn, of which both ends are closed in the end.
func virtualConn(t *testing.T, cfg Config, test func(t *testing.T, l *link, a, b *Conn)) {
	t.Helper()
	virtual(t, cfg, func(t *testing.T, l *link) {
		a, b := l.dial(t)
		test(t, l, a, b)
		closeConns(t, a, b)
	})
}

// onVirtualTime runs a subtest in a bubble.
func onVirtualTime(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// virtual runs a test on virtual time: what takes fifteen seconds takes exactly that, and no real time at all.
func virtual(t *testing.T, cfg Config, test func(t *testing.T, l *link)) {
	t.Helper()
	for name, p := range map[string]simfabric.Personality{"wait fd": simfabric.TCP(), "doorbell": simfabric.Shm()} {
		onVirtualTime(t, name, func(t *testing.T) {
			cfg := cfg
			cfg.Spin = -1 // polling would keep the clock from moving
			l := newLink(t, simfabric.Config{Seed: 5, Personality: p}, cfg)
			test(t, l)
			l.end(t)
		})
	}
}

func TestDeadlineIsExact(t *testing.T) {
	virtual(t, Config{}, func(t *testing.T, l *link) {
		a, b := l.dial(t)
		start := time.Now()
		require.NoError(t, a.SetReadDeadline(start.Add(3*time.Second)))
		require.ErrorIs(t, readN(a, 1), os.ErrDeadlineExceeded)
		require.Equal(t, 3*time.Second, time.Since(start))

		// A later deadline replaces an earlier one, for a call that is pending.
		start = time.Now()
		require.NoError(t, a.SetWriteDeadline(start.Add(time.Second)))
		time.AfterFunc(500*time.Millisecond, func() { assert.NoError(t, a.SetWriteDeadline(start.Add(7*time.Second))) })
		require.ErrorIs(t, writeN(a, 64<<20), os.ErrDeadlineExceeded)
		require.Equal(t, 7*time.Second, time.Since(start))
		resetConns(t, b)
		closeConns(t, a)
	})
}

func TestWakeUps(t *testing.T) {
	virtualConn(t, Config{}, func(t *testing.T, _ *link, a, b *Conn) {
		for i := range 100 {
			var wg sync.WaitGroup
			wg.Go(func() {
				buf := make([]byte, 1)
				_, err := b.Read(buf)
				assert.NoError(t, err)
				assert.Equal(t, byte(i), buf[0])
			})
			time.Sleep(time.Minute) // everything sleeps by now
			synctest.Wait()
			start := time.Now()
			mustWrite(t, a, []byte{byte(i)})
			wg.Wait()
			require.Zero(t, time.Since(start), "a timer, not the arrival, woke the reader")
		}
	})
}

// TestCloseOfAFrozenPeer: a peer that gives nothing back is waited for once for all conns. SetLinger asks for more.
func TestCloseOfAFrozenPeer(t *testing.T) {
	virtual(t, Config{}, func(t *testing.T, l *link) {
		near, far := l.dials(t, 4)
		l.net.Kill(l.eb.fab, simfabric.DeathSilent)
		took := func(want time.Duration, f func() error, with error) {
			start := time.Now()
			require.ErrorIs(t, f(), with)
			assert.Equal(t, want, time.Since(start))
		}
		require.NoError(t, near[0].SetWriteDeadline(time.Now().Add(time.Second)))
		for err := error(nil); err == nil; { // until nothing more leaves
			err = writeN(near[0], 1<<10)
		}
		took(leaveTime, near[0].Close, nil)
		took(0, near[1].CloseWrite, nil)
		took(0, near[1].Close, nil)
		took(0, near[2].CloseRead, nil)
		took(0, func() error { return near[2].SetDeadline(time.Now()) }, nil)
		require.NoError(t, near[3].SetLinger(5))
		took(5*time.Second, near[3].Close, os.ErrDeadlineExceeded)
		resetConns(t, far...)
	})
}

func TestRefusedForEver(t *testing.T) {
	virtual(t, Config{}, func(t *testing.T, l *link) {
		a, _ := l.dial(t)
		l.net.Kill(l.eb.fab, simfabric.DeathRefuse)
		start := time.Now()
		_, err := io.Copy(onlyWriter{a}, zeroes{})
		require.ErrorIs(t, err, syscall.ECONNRESET)
		afterDeadAfter(t, start)
		require.NoError(t, a.Close())
	})
}

// afterDeadAfter checks that start is DeadAfter ago, and at most two choreTimes longer, since chores notice it.
func afterDeadAfter(t *testing.T, start time.Time) {
	t.Helper()
	took := time.Since(start)
	require.GreaterOrEqual(t, took, DefaultDeadAfter)
	require.LessOrEqual(t, took, DefaultDeadAfter+2*choreTime)
}

// TestDeaf: a peer that completes nothing is ended though the fabric takes what is sent, but only with something in flight.
func TestDeaf(t *testing.T) {
	virtual(t, Config{}, func(t *testing.T, l *link) {
		a, _ := l.dial(t)
		for range 3 {
			require.NoError(t, writeN(a, 5000)) // more than injects take
			time.Sleep(2 * DefaultDeadAfter)    // with nothing in flight
		}
		l.net.Kill(l.eb.fab, simfabric.DeathSilent)
		start := time.Now()
		require.NoError(t, a.SetWriteDeadline(start.Add(time.Millisecond)))
		err := error(nil)
		for err == nil { // injects vanish: until something waits for a slot, before the window is full
			_, err = a.Write(make([]byte, 500))
		}
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, a.SetReadDeadline(start.Add(2*DefaultDeadAfter)))
		require.ErrorIs(t, readN(a, 1), syscall.ECONNRESET)
		afterDeadAfter(t, start)
		require.NoError(t, a.Close())
	})
}

func TestIdleLeasesComeBack(t *testing.T) {
	virtualConn(t, Config{}, func(t *testing.T, l *link, a, b *Conn) {
		for range 3 {
			warmUpBy(t, a, b, 1<<20)
			time.Sleep(5 * choreTime)
			locked(l.eb, func() {
				require.Zero(t, l.eb.core.leases.out(), "leases of an idle conn")
				require.Zero(t, l.b.p.landing.Stats().Mapped, "landing memory of an idle peer")
			})
		}
	})
}

type onlyWriter struct{ io.Writer }

type zeroes struct{}

func (zeroes) Read(b []byte) (int, error) { return len(b), nil }

// TestSlowInsert: while an address is being inserted, conns with other peers go on, the caller that
// waits for it can give up, and the endpoint is not closed under the call.
func TestSlowInsert(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := simfabric.EFA()
		p.InsertDelay = 5 * time.Second
		l := newLink(t, simfabric.Config{Personality: p}, Config{Spin: -1})
		a, b := l.dial(t)
		late, err := l.ea.NewPeer(PeerConfig{})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		start := time.Now()
		given := begin(func() error {
			err := late.Connect(ctx, l.b.Local())
			late.Lost(err)
			return err
		})
		synctest.Wait()
		for range 100 {
			carry(t, a, b, 1)
		}
		require.Less(t, time.Since(start), 2*time.Second, "polling takes a millisecond each time")
		require.ErrorIs(t, <-given, context.DeadlineExceeded)
		require.Equal(t, 2*time.Second, time.Since(start))
		resetConns(t, b)
		require.NoError(t, a.Close())
		require.NoError(t, l.ea.Close())
		require.Equal(t, p.InsertDelay, time.Since(start), "Close waits for the call")
		require.NoError(t, l.eb.Close())
	})
}
