package rdmanet_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// blockingHandler keeps every record that it is given, and then blocks until it is released.
type blockingHandler struct {
	slog.Handler
	release chan struct{}
	mu      sync.Mutex // guards list
	list    []slog.Record
}

// blockedLogger returns a logger that blocks until it is released, when the test is over at the
// latest. Make it after the Transport, so that it is released before the Transport is closed.
func blockedLogger(t *testing.T) (h *blockingHandler, logger *slog.Logger, release func()) {
	t.Helper()
	h = &blockingHandler{Handler: slog.DiscardHandler, release: make(chan struct{})}
	release = sync.OnceFunc(func() { close(h.release) })
	t.Cleanup(release)
	return h, slog.New(h), release
}

func (h *blockingHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h *blockingHandler) Handle(_ context.Context, r slog.Record) error {
	h.mu.Lock()
	h.list = append(h.list, r)
	h.mu.Unlock()
	<-h.release
	return nil
}

func (h *blockingHandler) records() []slog.Record {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]slog.Record(nil), h.list...)
}

// endsIn fails the test if f fails or takes longer than limit.
func endsIn(t *testing.T, limit time.Duration, what string, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		require.NoError(t, err, what)
	case <-time.After(limit):
		require.Fail(t, what+" takes too long")
	}
}

// says sends text over a new TCP connection, which is closed when the test is over.
func says(t *testing.T, l net.Listener, text string) {
	t.Helper()
	nc, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { nc.Close() })
	_, err = io.WriteString(nc, text)
	require.NoError(t, err)
}

// TestCloseDoesNotWaitForLoggers: Listener.Close does not wait for a logger that blocks, and
// Transport.Close gives up on it after EventsLinger.
func TestCloseDoesNotWaitForLoggers(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	h, logger, _ := blockedLogger(t)
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Logger: logger})
	for range 3 {
		says(t, l, "GET / HTTP/1.1\r\n\r\n")
	}
	rdmatest.Eventually(t, func() bool { return len(h.records()) == 1 && tr.Stats().HandshakeFailures["not rdmanet"] == 3 }, "the logger blocks")
	rdmatest.Eventually(t, func() bool { return tr.Stats().Handshakes == 0 }, "no handshake waits for it")
	c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr, Logger: logger}, l)
	rdmatest.Echo(t, c, s)
	rdmatest.CloseAll(t, c, s)
	endsIn(t, rdmanet.EventsLinger, "Listener.Close", l.Close)
	assert.Zero(t, tr.Stats().EventsDropped)
	start := time.Now()
	endsIn(t, rdmatest.Patience, "Transport.Close", tr.Close)
	assert.GreaterOrEqual(t, time.Since(start), rdmanet.EventsLinger, "it waits for the logger")
	assert.NotZero(t, tr.Stats().EventsDropped, "and drops the rest")
	assert.Len(t, h.records(), 1)
}

// TestCloseWaitsForEvents: by the time Close returns, everything that has happened has been
// logged, even by a slow logger.
func TestCloseWaitsForEvents(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	h, logger, release := blockedLogger(t)
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Logger: logger})
	for range 3 {
		says(t, l, "GET / HTTP/1.1\r\n\r\n")
	}
	rdmatest.Eventually(t, func() bool { return tr.Stats().HandshakeFailures["not rdmanet"] == 3 && tr.Stats().Handshakes == 0 }, "all have failed")
	rdmatest.Eventually(t, func() bool { return len(h.records()) == 1 }, "the logger blocks")
	time.AfterFunc(rdmanet.EventsLinger/10, release)
	require.NoError(t, tr.Close())
	assert.Len(t, h.records(), 3)
	assert.Zero(t, tr.Stats().EventsDropped)
}

// TestDialsDoNotWaitForLoggers: neither dials over a fabric nor dials that fall back wait for a logger.
func TestDialsDoNotWaitForLoggers(t *testing.T) {
	tr := simulated(t, simfabric.TCP(), simfabric.Net())
	h, logger, _ := blockedLogger(t)
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: []string{"net"}, AcceptTCP: true, Logger: logger})
	d := &rdmanet.Dialer{Transport: tr, Providers: []string{"net"}, Logger: logger, DisableReuse: true}
	var c net.Conn
	dial := func() (err error) {
		c, err = d.Dial("rdma", l.Addr().String())
		return err
	}
	for range 5 {
		endsIn(t, rdmatest.Patience, "Dial", dial)
		s := rdmatest.Accept(t, l)
		rdmatest.Echo(t, c, s)
		rdmatest.CloseAll(t, c, s)
	}
	d.Providers, d.Fallback = []string{"tcp;ofi_rxm"}, rdmanet.FallbackTCP
	endsIn(t, rdmatest.Patience, "a Dial that falls back", dial)
	assert.Error(t, rdmatest.InfoOf(t, c).Fallback)
	require.NoError(t, c.Close())
	rdmatest.Eventually(t, func() bool { return len(h.records()) == 1 }, "it blocks all the while")
}

// TestEventsDropped: plain TCP clients, each of which is an event at debug level, leave room for
// warnings. The logger gets the events in order, each with the time when it happened.
func TestEventsDropped(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	h, logger, release := blockedLogger(t)
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, AcceptTCP: true, Logger: logger})
	before := time.Now()
	plain := func() {
		c, s := plainPair(t, l, greeting)
		rdmatest.CloseAll(t, c, s)
	}
	plain()
	rdmatest.Eventually(t, func() bool { return len(h.records()) == 1 }, "the logger blocks")
	const more = 7
	for range rdmanet.MaxDebugEvents + more {
		plain()
	}
	rdmatest.Eventually(t, func() bool { return tr.Stats().EventsDropped == more }, "those that do not fit")
	says(t, l, "RDMN\x63\x00\x00\x00")
	rdmatest.Eventually(t, func() bool { return tr.Stats().HandshakeFailures["version"] == 1 && tr.Stats().Handshakes == 0 }, "something to warn of")
	assert.EqualValues(t, more, tr.Stats().EventsDropped)
	after := time.Now()
	release()
	rdmatest.Eventually(t, func() bool { return len(h.records()) == rdmanet.MaxDebugEvents+2 }, "the rest")
	records := h.records()
	for i, r := range records {
		if i > 0 {
			assert.False(t, r.Time.Before(records[i-1].Time), "in order")
		}
		assert.WithinRange(t, r.Time, before, after)
	}
	assert.Equal(t, slog.LevelWarn, records[len(records)-1].Level)
	plain()
	rdmatest.Eventually(t, func() bool { return len(h.records()) == rdmanet.MaxDebugEvents+3 }, "it goes on")
}
