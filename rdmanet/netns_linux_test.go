package rdmanet_test

import (
	"context"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// threads notes on which threads sockets are made.
type threads struct {
	mu  sync.Mutex
	ids []int
}

func (th *threads) note() {
	th.mu.Lock()
	defer th.mu.Unlock()
	th.ids = append(th.ids, unix.Gettid())
}

// only asserts that all sockets since the last call were made on the calling thread, and that there were some.
func (th *threads) only(t *testing.T, what string) {
	t.Helper()
	th.mu.Lock()
	defer th.mu.Unlock()
	assert.NotEmpty(t, th.ids, what)
	for _, id := range th.ids {
		assert.Equal(t, unix.Gettid(), id, what)
	}
	th.ids = nil
}

// TestSocketsOnTheDialsThread: where the thread's network namespace may not be the process's, all
// sockets of a dial are made on that thread, also those that resolve names.
func TestSocketsOnTheDialsThread(t *testing.T) {
	onlyShm := func(t *testing.T, test func(t *testing.T, tr *rdmanet.Transport, providers []string)) {
		t.Run("simulated", func(t *testing.T) { test(t, simulated(t, simfabric.Shm()), []string{"shm"}) })
		t.Run("shm", func(t *testing.T) {
			tr := new(rdmanet.Transport)
			rdmatest.Cleanly(t, tr)
			test(t, tr, []string{"shm"})
		})
	}
	onlyShm(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		tr.Depart()
		names := newNameServer(t, "::1", "127.0.0.1").resolver()
		l, port := rdmatest.ListenAt(t, rdmanet.ListenConfig{Transport: tr, Providers: providers}, "127.0.0.1:0")
		var dialed, asked threads
		d := &rdmanet.Dialer{
			Transport: tr, Providers: providers, Timeout: rdmatest.Patience,
			Control: func(string, string, syscall.RawConn) error {
				dialed.note()
				return nil
			},
			Resolver: &net.Resolver{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				asked.note()
				return names.Dial(ctx, network, address)
			}},
		}
		for _, host := range []string{"127.0.0.1", theName} {
			for _, alone := range []bool{false, true} {
				d.DisableReuse = alone
				rdmatest.Visit(t, d, l, "rdma", net.JoinHostPort(host, port))
				if host == "127.0.0.1" || alone {
					dialed.only(t, host)
				}
				if host != "127.0.0.1" {
					asked.only(t, host)
				}
			}
		}
		d.DisableReuse = false
		assert.True(t, rdmatest.Visit(t, d, l, "rdma", net.JoinHostPort(theName, port)).Reused)
	})
}

// TestNoSocketsElsewhere: providers whose sockets would be in the process's network namespace are refused
// where the thread may be in another one.
func TestNoSocketsElsewhere(t *testing.T) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.Shm(), Others: []simfabric.Personality{simfabric.TCP()}})
	tr := rdmanet.NewTransport(n)
	rdmatest.Cleanly(t, tr)
	tr.Depart()
	refused := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, rdmanet.ErrProviderUnavailable)
		assert.ErrorContains(t, err, simfabric.TCP().Provider)
		assert.ErrorContains(t, err, "network namespace")
	}
	only := []string{simfabric.TCP().Provider}
	_, err := (&rdmanet.ListenConfig{Transport: tr, Providers: only}).Listen(t.Context(), "rdma", "127.0.0.1:0")
	refused(err)

	both := []string{simfabric.TCP().Provider, "shm"}
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: both})
	_, err = (&rdmanet.Dialer{Transport: tr, Providers: only}).Dial("rdma", l.Addr().String())
	refused(err)
	info := rdmatest.Visit(t, &rdmanet.Dialer{Transport: tr, Providers: both}, l, "rdma", l.Addr().String())
	assert.Equal(t, "shm", info.Provider)
	require.NotEmpty(t, info.Refused)
	assert.Contains(t, info.Refused[0].String(), "network namespace")
}
