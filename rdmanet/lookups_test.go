package rdmanet_test

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
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
