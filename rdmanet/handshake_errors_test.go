package rdmanet_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// lapse is a context whose deadline passes when the test closes done.
type lapse struct {
	context.Context
	done chan struct{}
}

func newLapse(t *testing.T) lapse { return lapse{t.Context(), make(chan struct{})} }

func (l lapse) Done() <-chan struct{} { return l.done }

func (l lapse) Err() error {
	select {
	case <-l.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// taciturn starts a server that sends no more than says. It sends each client's connection to
// met once it has read that many bytes from it.
func taciturn(t *testing.T, says string, reads int) (address string, met <-chan net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	conns := make(chan net.Conn, 10)
	go func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = nc.Write([]byte(says))
			_, _ = io.ReadFull(nc, make([]byte, reads))
			conns <- nc
		}
	}()
	return ln.Addr().String(), conns
}

// isLate asserts that an error is a time-out of the handshake, and has both addresses.
func isLate(t *testing.T, err error, address string) {
	t.Helper()
	assert.ErrorIs(t, err, rdmanet.ErrHandshakeTimeout)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
	assert.NotErrorIs(t, err, context.Canceled)
	isBetween(t, err, address)
	assert.True(t, err.(net.Error).Timeout())
}

func isBetween(t *testing.T, err error, address string) {
	t.Helper()
	var oe *net.OpError
	require.ErrorAs(t, err, &oe)
	assert.Same(t, oe, err, "outermost")
	assert.Equal(t, "dial", oe.Op)
	require.IsType(t, new(net.TCPAddr), oe.Source)
	require.IsType(t, new(net.TCPAddr), oe.Addr)
	assert.Equal(t, address, oe.Addr.String())
}

// TestShortTimeout: a dial whose own time is over says what it was waiting for, like a dial
// whose handshake has timed out.
func TestShortTimeout(t *testing.T) {
	for name, tt := range map[string]struct {
		says  string
		reads int // after so many bytes the dialer waits for what is missing
		text  string
	}{
		"another protocol": {"", 8, "(context deadline exceeded): no preamble from the peer; plain TCP needs Dialer.Fallback"},
		"no hello":         {string((&framing.Preamble{Version: framing.Version}).Append(nil)), 9, "waiting for hello"},
	} {
		for reuse, disabled := range map[string]bool{"": false, ", not to be reused": true} {
			t.Run(name+reuse, func(t *testing.T) {
				address, met := taciturn(t, tt.says, tt.reads)
				d := rdmanet.Dialer{Transport: simulated(t, simfabric.TCP()), DisableReuse: disabled}
				ctx := newLapse(t)
				go func() {
					nc := <-met
					close(ctx.done)
					_, _ = io.Copy(io.Discard, nc)
					nc.Close()
				}()
				_, err := d.DialContext(ctx, "rdma", address)
				isLate(t, err, address)
				assert.ErrorContains(t, err, tt.text)
			})
		}
		t.Run(name+", Timeout", func(t *testing.T) {
			address, met := taciturn(t, tt.says, tt.reads)
			d := rdmanet.Dialer{Transport: simulated(t, simfabric.TCP()), Timeout: 500 * time.Millisecond}
			_, err := d.Dial("rdma", address)
			(<-met).Close()
			isLate(t, err, address)
			assert.ErrorContains(t, err, tt.text)
		})
	}
}

// TestShorterTimeout: of two dials that wait for the same handshake, one has less time. It
// ends by itself, and the handshake goes on for the other.
func TestShorterTimeout(t *testing.T) {
	address, met := taciturn(t, "", 8)
	tr := simulated(t, simfabric.TCP())
	d := rdmanet.Dialer{Transport: tr}
	patient, cancel := context.WithCancel(t.Context())
	defer cancel()
	others := make(chan error, 1)
	go func() {
		_, err := d.DialContext(patient, "rdma", address)
		others <- err
	}()
	nc := <-met
	defer nc.Close()
	ctx, hasty := newLapse(t), make(chan error, 1)
	go func() {
		_, err := d.DialContext(ctx, "rdma", address)
		hasty <- err
	}()
	rdmatest.Eventually(t, func() bool { return tr.Waiters() == 2 }, "both wait")
	close(ctx.done)
	err := <-hasty
	isLate(t, err, address)
	assert.ErrorContains(t, err, "still under way")
	assert.Equal(t, 1, tr.Flights())

	cancel()
	err = <-others
	assert.ErrorIs(t, err, context.Canceled)
	assert.False(t, err.(net.Error).Timeout())
	isBetween(t, err, address)
}

// TestTransportCloseSaysWhere: the error has both addresses even if Transport.Close ends the handshake.
func TestTransportCloseSaysWhere(t *testing.T) {
	address, met := taciturn(t, "", 8)
	tr := simulated(t, simfabric.TCP())
	go func() {
		nc := <-met
		defer nc.Close()
		assert.NoError(t, tr.Close())
	}()
	_, err := (&rdmanet.Dialer{Transport: tr}).Dial("rdma", address)
	assert.ErrorIs(t, err, net.ErrClosed)
	isBetween(t, err, address)
}

// errorLog is a slog.Handler that keeps the errors that it is told.
type errorLog struct {
	slog.Handler
	mu   sync.Mutex
	errs []error
}

func (l *errorLog) Enabled(context.Context, slog.Level) bool { return true }

func (l *errorLog) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok {
			l.errs = append(l.errs, err)
		}
		return true
	})
	return nil
}

func (l *errorLog) list() []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.errs
}

// TestListenerSaysWhere: the errors that a listener logs have both addresses, too.
func TestListenerSaysWhere(t *testing.T) {
	for name, tt := range map[string]struct {
		config rdmanet.ListenConfig
		send   string
		is     error
	}{
		"refused": {rdmanet.ListenConfig{}, "GET / HTTP/1.1\r\n\r\n", rdmanet.ErrNotRdmanet},
		"silence": {rdmanet.ListenConfig{HandshakeTimeout: 20 * time.Millisecond}, "", rdmanet.ErrHandshakeTimeout},
		"silence where TCP is accepted": {rdmanet.ListenConfig{HandshakeTimeout: 20 * time.Millisecond, AcceptTCP: true},
			"", rdmanet.ErrHandshakeTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			log := &errorLog{Handler: slog.DiscardHandler}
			tt.config.Transport, tt.config.Logger = simulated(t, simfabric.TCP()), slog.New(log)
			l := rdmatest.Listen(t, tt.config)
			nc, err := net.Dial("tcp", l.Addr().String())
			require.NoError(t, err)
			defer nc.Close()
			_, err = nc.Write([]byte(tt.send))
			require.NoError(t, err)
			rdmatest.Eventually(t, func() bool { return len(log.list()) == 1 }, "told")
			var oe *net.OpError
			require.ErrorAs(t, log.list()[0], &oe)
			assert.Equal(t, "accept", oe.Op)
			assert.ErrorIs(t, oe, tt.is)
			require.IsType(t, new(net.TCPAddr), oe.Source)
			require.IsType(t, new(net.TCPAddr), oe.Addr)
			assert.Equal(t, l.Addr().String(), oe.Source.String())
			assert.Equal(t, nc.LocalAddr().String(), oe.Addr.String())
		})
	}
}
