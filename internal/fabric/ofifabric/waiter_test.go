//go:build linux && cgo

package ofifabric_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/pool"
)

// waiters are the providers that have a descriptor to wait on.
var waiters = testenv.Shared()

func TestNoWaiterForSharedMemory(t *testing.T) {
	assert.Nil(t, open(t, "shm").Waiter())
}

// sleeper calls ready as a bell of w does, and has it sleep once that is safe.
func sleeper(w fabric.Waiter, ready func() bool) func() bool {
	return func() bool {
		for !ready() {
			if safe, err := w.TryWait(); safe || err != nil {
				return err != nil
			}
		}
		return true
	}
}

// Each of many messages wakes a sleeping receiver by either bell, while the sender
// does nothing but post and poll.
func TestWaiterSeesEveryMessage(t *testing.T) {
	for _, provider := range waiters {
		t.Run(provider, func(t *testing.T) { seesEveryMessage(t, provider, fabric.Waiter.Bell) })
		t.Run(provider+", watcher", func(t *testing.T) { seesEveryMessage(t, provider, fabric.Waiter.Watcher) })
	}
}

// connected returns two endpoints of which a has sent b a message, and b has posted a receive for the next one:
// recv, or another like it.
func connected(t *testing.T, provider string) (a, b *side, recv fabric.Op) {
	a, b = pair(t, provider)
	in := mapped(t, 4096)
	region := b.register(in, pool.AccessLocal)
	recv = fabric.Op{Kind: fabric.Recv, Buf: in[:64], Desc: region.Desc()}
	b.post(b, recv, recv)
	// ofi_rxm's descriptor does not become readable when a peer asks for a connection (libfabric
	// 2.6; it does in 1.17), so both sides poll for the first message.
	a.post(b, fabric.Op{Kind: fabric.Inject, To: a.peer, Buf: outside(t, "connect")})
	b.await(a, fabric.Recv)
	return a, b, recv
}

func seesEveryMessage(t *testing.T, provider string, bell func(fabric.Waiter) fabric.Bell) {
	const messages = 50
	a, b, recv := connected(t, provider)
	b.Waiter().Watch(true)
	received := make(chan error)
	go func() {
		var done [1]fabric.Completion
		var failed error
		for range messages {
			found := false
			err := bell(b.Waiter()).Sleep(sleeper(b.Waiter(), func() bool {
				_, n, err := b.Exchange(nil, done[:])
				found = n == 1 || err != nil
				if failed == nil {
					failed = err
				}
				return found
			}))
			switch {
			case err == nil && failed != nil:
				err = failed
			case err == nil && !found:
				err = assert.AnError
			case err == nil:
				_, _, err = b.Exchange([]fabric.Op{recv}, nil)
			}
			received <- err
		}
	}()
	for range messages {
		a.post(a, fabric.Op{Kind: fabric.Inject, To: a.peer, Buf: outside(t, "wake up")})
		ticker := time.NewTicker(100 * time.Microsecond)
		for waiting := true; waiting; {
			select {
			case err := <-received:
				require.NoError(t, err)
				waiting = false
			case <-ticker.C:
				a.poll()
			}
		}
		ticker.Stop()
	}
}

// TestWatch: the watcher's bell is silent unless Watch is on. Watch tells of what has come until then.
func TestWatch(t *testing.T) {
	for _, provider := range waiters {
		t.Run(provider, func(t *testing.T) {
			a, b, _ := connected(t, provider)
			w := b.Waiter()
			w.Watch(true)
			w.Watch(false)
			rings, begun, first := make(chan bool), make(chan struct{}), true
			var over atomic.Bool
			ended := make(chan error, 1)
			go func() {
				ended <- w.Watcher().Sleep(func() bool {
					if first {
						first = false
						close(begun)
					} else if !over.Load() {
						rings <- true
					}
					return over.Load()
				})
			}()
			<-begun
			a.post(a, fabric.Op{Kind: fabric.Inject, To: a.peer, Buf: outside(t, "wake up")})
			for range 20 {
				a.poll()
				select {
				case <-rings:
					t.Fatal("the watcher is woken, though Watch is off")
				case <-time.After(time.Millisecond):
				}
			}
			if !w.Watch(true) {
				t.Error("Watch does not tell that there is something")
			}
			a.post(a, fabric.Op{Kind: fabric.Inject, To: a.peer, Buf: outside(t, "wake up")})
			for waiting, end := true, time.Now().Add(timeout); waiting; {
				a.poll()
				select {
				case <-rings:
					waiting = false
				case <-time.After(time.Millisecond):
					waiting = assert.True(t, time.Now().Before(end), "the watcher is not woken, though Watch is on")
				}
			}
			over.Store(true)
			w.Watcher().Wake()
			go func() {
				for range rings {
				}
			}()
			require.NoError(t, <-ended)
			close(rings)
		})
	}
}

// TestWake: Wake ends a Sleep that is going on, or the next one, and no more than that.
func TestWake(t *testing.T) {
	for _, provider := range waiters {
		t.Run(provider, func(t *testing.T) {
			w := open(t, provider).Waiter()
			for _, bell := range []fabric.Bell{w.Bell(), w.Watcher()} {
				var woken atomic.Bool
				sleep := func() error {
					for !woken.Swap(false) {
						if err := bell.Sleep(woken.Load); err != nil {
							return err
						}
					}
					return nil
				}
				wake := func() { woken.Store(true); bell.Wake() }
				wake()
				require.NoError(t, sleep())
				for range 3 {
					ended := make(chan error, 1)
					time.AfterFunc(5*time.Millisecond, wake)
					go func() { ended <- sleep() }()
					select {
					case err := <-ended:
						require.NoError(t, err)
					case <-time.After(timeout):
						t.Fatal("Wake did not end Sleep")
					}
				}
			}
		})
	}
}
