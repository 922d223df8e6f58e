//go:build linux && cgo

package ofifabric_test

import (
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

// Each of many messages wakes a sleeping receiver, while the sender
// does nothing but post and poll.
func TestWaiterSeesEveryMessage(t *testing.T) {
	const messages = 50
	for _, provider := range waiters {
		t.Run(provider, func(t *testing.T) {
			a, b := pair(t, provider)
			in := mapped(t, 4096)
			region := b.register(in, pool.AccessLocal)
			recv := fabric.Op{Kind: fabric.Recv, Buf: in[:64], Desc: region.Desc()}
			b.post(b, recv, recv)
			// ofi_rxm's descriptor does not become readable when a peer asks for a connection (libfabric
			// 2.6; it does in 1.17), so both sides poll for the first message.
			a.post(b, fabric.Op{Kind: fabric.Inject, To: a.peer, Buf: outside(t, "connect")})
			b.await(a, fabric.Recv)
			received := make(chan error)
			go func() {
				var done [1]fabric.Completion
				var failed error
				for range messages {
					found := false
					err := b.Waiter().Wait(func() bool {
						_, n, err := b.Exchange(nil, done[:])
						found = n == 1 || err != nil
						if failed == nil {
							failed = err
						}
						return found
					}, timeout)
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
		})
	}
}

func TestWakeAndLimit(t *testing.T) {
	for _, provider := range waiters {
		t.Run(provider, func(t *testing.T) {
			w := open(t, provider).Waiter()
			never := func() bool { return false }

			start := time.Now()
			require.NoError(t, w.Wait(never, 20*time.Millisecond))
			assert.GreaterOrEqual(t, time.Since(start), 20*time.Millisecond)

			w.Wake() // before the Wait, which it ends
			require.NoError(t, w.Wait(never, 0))

			time.AfterFunc(5*time.Millisecond, w.Wake)
			ended := make(chan error, 1)
			go func() { ended <- w.Wait(never, 0) }()
			select {
			case err := <-ended:
				require.NoError(t, err)
			case <-time.After(timeout):
				t.Fatal("Wake did not end the Wait")
			}
		})
	}
}
