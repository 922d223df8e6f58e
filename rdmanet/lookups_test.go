package rdmanet_test

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// barren is a fabric that has no provider, and counts how often it is asked.
type barren struct{ listed, opened atomic.Int64 }

func (b *barren) Providers(netip.Addr) ([]fabric.ProviderInfo, error) {
	b.listed.Add(1)
	return nil, fabric.ErrNoProvider
}

func (b *barren) Open(string, netip.Addr) (fabric.Endpoint, error) {
	b.opened.Add(1)
	return nil, fabric.ErrNoProvider
}

// greet dials a listener on a barren fabric n times, at once if together is set.
func greet(t *testing.T, n int, together bool, l *rdmanet.Listener, want error) {
	t.Helper()
	here := rdmanet.NewTransport(simfabric.New(simfabric.Config{Personality: simfabric.TCP()}))
	defer here.Close()
	d := &rdmanet.Dialer{Transport: here, DisableReuse: true, Timeout: rdmatest.Patience}
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			_, err := d.Dial("rdma", l.Addr().String())
			assert.ErrorIs(t, err, want)
		})
		if !together {
			wg.Wait()
		}
	}
	wg.Wait()
}

// TestRefusedStrangersAskNothing: for a stranger that Authorize refuses, libfabric is not asked for
// anything.
func TestRefusedStrangersAskNothing(t *testing.T) {
	var f barren
	there := rdmanet.NewTransport(&f)
	rdmatest.Cleanly(t, there)
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, AcceptTCP: true,
		Authorize: func(context.Context, rdmanet.PeerInfo) error { return errors.New("no strangers") }})
	listed, opened := f.listed.Load(), f.opened.Load()
	require.NotZero(t, listed, "by Listen")
	time.Sleep(rdmanet.NothingAge) // what Listen has found is forgotten
	greet(t, 20, false, l, rdmanet.ErrUnauthorized)
	assert.Equal(t, listed, f.listed.Load())
	assert.Equal(t, opened, f.opened.Load())
}

// TestNothingIsRemembered: where a listener has nothing to offer, libfabric is asked once in
// NothingAge, however many hellos come, at once or one after another.
func TestNothingIsRemembered(t *testing.T) {
	for name, together := range map[string]bool{"at once": true, "one after another": false} {
		t.Run(name, func(t *testing.T) {
			var f barren
			there := rdmanet.NewTransport(&f)
			rdmatest.Cleanly(t, there)
			begin := time.Now()
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, AcceptTCP: true})
			greet(t, 200, together, l, rdmanet.ErrNoProvider)
			times := 1 + int64(time.Since(begin)/rdmanet.NothingAge)
			assert.LessOrEqual(t, f.listed.Load(), times)
			assert.LessOrEqual(t, f.opened.Load(), times)
		})
	}
}

// hanging is a fabric whose first search hangs.
type hanging struct {
	*simfabric.Network
	asked atomic.Int64
	gate  chan struct{}
}

func (h *hanging) Providers(a netip.Addr) ([]fabric.ProviderInfo, error) {
	if h.asked.Add(1) == 1 {
		<-h.gate
	}
	return h.Network.Providers(a)
}

// TestHangingSearch: a dial ends with its context, although libfabric hangs that was asked for it, or
// for another one.
func TestHangingSearch(t *testing.T) {
	f := &hanging{Network: simfabric.New(simfabric.Config{Personality: simfabric.TCP()}), gate: make(chan struct{})}
	here, there := rdmanet.NewTransport(f), rdmanet.NewTransport(f.Network)
	rdmatest.Cleanly(t, here, there)
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
	d := &rdmanet.Dialer{Transport: here, DisableReuse: true, Providers: []string{"tcp;ofi_rxm"}}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			_, err := d.DialContext(ctx, "rdma", l.Addr().String())
			assert.ErrorIs(t, err, context.Canceled)
		})
	}
	rdmatest.Eventually(t, func() bool { return f.asked.Load() == 1 }, "libfabric is asked")
	cancel()
	wg.Wait()
	assert.EqualValues(t, 1, f.asked.Load())
	close(f.gate)
	c, err := d.Dial("rdma", l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

// failing is a fabric on which a search fails once, as for lack of descriptors.
type failing struct {
	*simfabric.Network
	fails atomic.Bool
}

func (f *failing) Providers(a netip.Addr) ([]fabric.ProviderInfo, error) {
	if f.fails.CompareAndSwap(true, false) {
		return nil, syscall.EMFILE
	}
	return f.Network.Providers(a)
}

// TestFailedSearch: that libfabric could not be asked is not remembered.
func TestFailedSearch(t *testing.T) {
	f := &failing{Network: simfabric.New(simfabric.Config{Personality: simfabric.TCP()})}
	here, there := rdmanet.NewTransport(f), rdmanet.NewTransport(f.Network)
	rdmatest.Cleanly(t, here, there)
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, Providers: []string{"tcp;ofi_rxm"}})
	d := &rdmanet.Dialer{Transport: here, Providers: []string{"tcp;ofi_rxm"}, Timeout: rdmatest.Patience}
	f.fails.Store(true)
	_, err := d.Dial("rdma", l.Addr().String())
	require.ErrorIs(t, err, syscall.EMFILE)
	c, err := d.Dial("rdma", l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, c.Close())
}
