package rdmanet_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/bootstrap"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestAuthorizeEnds: whatever ends the handshake ends the context of Authorize.
func TestAuthorizeEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		limit time.Duration
		end   func(l *rdmanet.Listener, tr *rdmanet.Transport) error
		cause error
		dial  error // nil means any error
	}{
		"HandshakeTimeout": {100 * time.Millisecond, nil, rdmanet.ErrHandshakeTimeout, nil},
		"Listener.Close": {0, func(l *rdmanet.Listener, _ *rdmanet.Transport) error { return l.Close() },
			rdmanet.ErrClosing, rdmanet.ErrClosing},
		"Transport.Close": {0, func(_ *rdmanet.Listener, tr *rdmanet.Transport) error { return tr.Close() },
			rdmanet.ErrClosing, rdmanet.ErrClosing},
	} {
		t.Run(name, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Personality: simfabric.TCP()})
			here, there := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
			rdmatest.Cleanly(t, here)
			defer there.Close()
			asked, cause := make(chan struct{}), make(chan error, 1)
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, HandshakeTimeout: tt.limit,
				Authorize: func(ctx context.Context, _ rdmanet.PeerInfo) error {
					close(asked)
					<-ctx.Done()
					cause <- context.Cause(ctx)
					return ctx.Err()
				}})
			dialed := make(chan error, 1)
			go func() {
				_, err := (&rdmanet.Dialer{Transport: here}).Dial("rdma", l.Addr().String())
				dialed <- err
			}()
			<-asked
			if tt.end != nil {
				assert.NoError(t, tt.end(l, there))
			}
			assert.ErrorIs(t, <-cause, tt.cause)
			err := <-dialed
			require.Error(t, err)
			assert.NotErrorIs(t, err, rdmanet.ErrUnauthorized, "nobody has refused it")
			if tt.dial != nil {
				assert.ErrorIs(t, err, tt.dial)
				return
			}
			rdmatest.Eventually(t, func() bool { return there.Stats().HandshakeFailures["timeout"] == 1 }, "counted")
		})
	}
}

// TestAuthorizeStuck: calls of Authorize that ignore their context fail their own handshakes, and
// hold their places, of which there are MaxAsking, until they return. They do not harm other
// handshakes, which wait for a place until they time out, and they do not block Close.
func TestAuthorizeStuck(t *testing.T) {
	const dials = rdmanet.MaxAsking + 16
	n := simfabric.New(simfabric.Config{Personality: simfabric.TCP()})
	here, there := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
	rdmatest.Cleanly(t, here)
	defer there.Close()
	var inside atomic.Int32
	var stuck atomic.Bool
	release := make(chan struct{})
	defer close(release)
	stuck.Store(true)
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, HandshakeTimeout: 300 * time.Millisecond,
		Authorize: func(context.Context, rdmanet.PeerInfo) error {
			assert.LessOrEqual(t, inside.Add(1), int32(rdmanet.MaxAsking))
			defer inside.Add(-1)
			if stuck.Load() {
				<-release
			}
			return nil
		}})
	d := &rdmanet.Dialer{Transport: here, DisableReuse: true}
	var wg sync.WaitGroup
	for range dials {
		wg.Go(func() {
			_, err := d.Dial("rdma", l.Addr().String())
			assert.Error(t, err)
		})
	}
	wg.Wait() // HandshakeTimeout has ended them all
	assert.EqualValues(t, rdmanet.MaxAsking, inside.Load(), "still")
	rdmatest.Eventually(t, func() bool { return there.Stats().HandshakeFailures["timeout"] == dials }, "counted")
	_, err := d.Dial("rdma", l.Addr().String())
	assert.Error(t, err, "there is no place to ask")
	rdmatest.Eventually(t, func() bool { return there.Stats().HandshakeFailures["timeout"] == dials+1 }, "but it is let go in time")

	stuck.Store(false)
	for range rdmanet.MaxAsking {
		release <- struct{}{}
	}
	rdmatest.Eventually(t, func() bool { return inside.Load() == 0 }, "the places are free")
	var c *rdmanet.Conn
	rdmatest.Eventually(t, func() bool { // a busy machine may be too slow for 300 ms
		nc, err := d.Dial("rdma", l.Addr().String())
		if err == nil {
			c = nc.(*rdmanet.Conn)
		}
		return err == nil
	}, "others get in")
	rdmatest.CloseAll(t, c, rdmatest.Accept(t, l))

	stuck.Store(true)
	go func() { _, _ = d.Dial("rdma", l.Addr().String()) }()
	rdmatest.Eventually(t, func() bool { return inside.Load() == 1 }, "asked")
	require.NoError(t, there.Close(), "which does not wait for it")
	assert.EqualValues(t, 1, inside.Load())
}

// TestAuthorizeWhileOneWaits: while one call of Authorize waits, others are let in.
func TestAuthorizeWhileOneWaits(t *testing.T) {
	n := simfabric.New(simfabric.Config{Personality: simfabric.TCP()})
	here, there := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
	rdmatest.Cleanly(t, here)
	defer there.Close()
	asked, answer := make(chan struct{}), make(chan error)
	var first atomic.Bool
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, Authorize: func(ctx context.Context, _ rdmanet.PeerInfo) error {
		if first.Swap(true) {
			return nil
		}
		close(asked)
		return <-answer
	}})
	d := &rdmanet.Dialer{Transport: here, DisableReuse: true}
	dialed := make(chan error, 1)
	go func() {
		_, err := d.Dial("rdma", l.Addr().String())
		dialed <- err
	}()
	<-asked
	for range 5 {
		c, s := rdmatest.Meet(t, d, l)
		rdmatest.Echo(t, c, s)
		rdmatest.CloseAll(t, c, s)
	}
	answer <- errors.New("no guests")
	err := <-dialed
	require.ErrorIs(t, err, rdmanet.ErrUnauthorized)
	assert.ErrorContains(t, err, "no guests")
}

// TestAuthorizeExits: an Authorize that ends its goroutine, as t.FailNow does, lets nobody in.
func TestAuthorizeExits(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Authorize: func(context.Context, rdmanet.PeerInfo) error {
		runtime.Goexit()
		return nil
	}})
	_, err := (&rdmanet.Dialer{Transport: tr}).Dial("rdma", l.Addr().String())
	require.ErrorIs(t, err, rdmanet.ErrUnauthorized)
	assert.ErrorContains(t, err, "Authorize did not return")
}

// TestAuthorizeErrors: an error of Authorize is a refusal whatever it wraps, and no dialer falls back
// to TCP to get round it. An Authorize that asks another server over rdmanet may wrap any of these.
func TestAuthorizeErrors(t *testing.T) {
	_, failed := (&rdmanet.Dialer{Timeout: time.Nanosecond}).Dial("rdma", "127.0.0.1:1")
	for _, wrapped := range []error{
		rdmanet.ErrNotRdmanet, rdmanet.ErrVersion, rdmanet.ErrNoProvider, &bootstrap.NegotiationError{Reasons: []string{"shm: broken"}},
		rdmanet.ErrProviderUnavailable, rdmanet.ErrUnsupported, rdmanet.ErrMemory, rdmanet.ErrTooManyPeers, rdmanet.ErrClosing,
		rdmanet.ErrMalformed, rdmanet.ErrHandshakeTimeout, rdmanet.ErrTLSHandshake, context.DeadlineExceeded, net.ErrClosed, failed,
	} {
		t.Run(wrapped.Error(), func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Personality: simfabric.TCP()})
			here, there := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
			rdmatest.Cleanly(t, here)
			defer there.Close()
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, AcceptTCP: true, Authorize: func(context.Context, rdmanet.PeerInfo) error {
				return fmt.Errorf("asking the accounts: %w", wrapped)
			}})
			d := &rdmanet.Dialer{Transport: here, Fallback: rdmanet.FallbackTCP}
			_, err := d.Dial("rdma", l.Addr().String())
			require.ErrorIs(t, err, rdmanet.ErrUnauthorized)
			assert.NotErrorIs(t, err, wrapped)
			assert.ErrorContains(t, err, "not authorised by the listener: asking the accounts: ")
			rdmatest.Eventually(t, func() bool { return there.Stats().HandshakeFailures["unauthorized"] == 1 }, "counted there")
			assert.EqualValues(t, 1, here.Stats().HandshakeFailures["unauthorized"])
			assert.Empty(t, here.Stats().Fallbacks)
		})
	}
}
