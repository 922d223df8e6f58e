package rdmanet_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"sync"
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

// journal keeps what its logger is told, so that a test can look at the events.
type journal struct{ lockedBuffer }

func (j *journal) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(j, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// all lists the events with a name and a level.
func (j *journal) all(level slog.Level, name string) (list []map[string]any) {
	for line := range strings.Lines(j.String()) {
		var e map[string]any
		if json.Unmarshal([]byte(line), &e) == nil && e["level"] == level.String() && e["msg"] == "rdmanet: "+name {
			list = append(list, e)
		}
	}
	return list
}

// one waits for an event and returns it. It must be the only one of its name and level.
func (j *journal) one(t *testing.T, level slog.Level, name string) map[string]any {
	t.Helper()
	rdmatest.Eventually(t, func() bool { return len(j.all(level, name)) > 0 }, name)
	list := j.all(level, name)
	require.Len(t, list, 1, name)
	return list[0]
}

// world makes two Transports on one simulated network, and returns a listener on one, a dialer for the
// other, and what each side logs.
func world(t *testing.T, f fabric.Fabric, lc rdmanet.ListenConfig) (l *rdmanet.Listener, d *rdmanet.Dialer, here, there *journal) {
	t.Helper()
	client, server := rdmanet.NewTransport(f), rdmanet.NewTransport(f)
	rdmatest.Cleanly(t, client)
	t.Cleanup(func() { assert.NoError(t, server.Close()) })
	here, there = new(journal), new(journal)
	if lc.Transport != nil {
		server.MemoryLimit = lc.Transport.MemoryLimit
	}
	lc.Transport, lc.Logger = server, there.logger()
	return rdmatest.Listen(t, lc), &rdmanet.Dialer{Transport: client, Logger: here.logger()}, here, there
}

func TestPeerEvents(t *testing.T) {
	network := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.TCP()})
	l, d, here, there := world(t, network, rdmanet.ListenConfig{})
	c, s := rdmatest.Meet(t, d, l)
	for _, j := range []*journal{here, there} {
		e := j.one(t, slog.LevelDebug, "connected with a peer")
		assert.Equal(t, "tcp;ofi_rxm", e["provider"])
		assert.NotEmpty(t, e["peer"])
		assert.NotEmpty(t, e["local"])
	}
	rdmatest.CloseAll(t, c, s)
	d.Transport.CloseIdle()
	assert.EqualValues(t, 0, there.one(t, slog.LevelDebug, "peer lost")["conns"], "in good order")

	c, s = rdmatest.Meet(t, d, l)
	require.NoError(t, d.Transport.Close())
	e := there.one(t, slog.LevelWarn, "peer lost")
	assert.EqualValues(t, 1, e["conns"], "the server's conn is cut off")
	assert.NotEmpty(t, e["reason"])
	assert.NotEmpty(t, e["peer"])
	assert.Empty(t, here.all(slog.LevelWarn, "peer lost"), "it is this side that ended it")
	_ = c.Close()
	_ = s.Close()
}

func TestRefusedEvents(t *testing.T) {
	network := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.TCP()})
	l, d, _, there := world(t, network, rdmanet.ListenConfig{Backlog: 1})
	c, err := d.Dial("rdma", l.Addr().String())
	require.NoError(t, err)
	const refused = 5
	for range refused {
		_, err := d.Dial("rdma", l.Addr().String())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	}
	e := there.one(t, slog.LevelWarn, "conn refused")
	assert.Equal(t, "backlog full", e["reason"])
	assert.Equal(t, l.Addr().String(), e["listener"])
	assert.Len(t, there.all(slog.LevelWarn, "conn refused"), 1, "the others, without noise")
	rdmatest.CloseAll(t, c, rdmatest.Accept(t, l))
}

// TestLostPeersAreThinnedOut: strangers that come, open a conn and disappear do not fill a
// listener's log with warnings: all but the first are logged at debug level. The dialing side logs
// each at its own level.
func TestLostPeersAreThinnedOut(t *testing.T) {
	network := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.TCP()})
	l, d, _, there := world(t, network, rdmanet.ListenConfig{})
	const strangers = 4
	for range strangers {
		d.Transport = rdmanet.NewTransport(network)
		c, s := rdmatest.Meet(t, d, l)
		require.NoError(t, d.Transport.Close())
		_ = c.Close()
		_, err := s.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		_ = s.Close()
	}
	rdmatest.Eventually(t, func() bool { return len(there.all(slog.LevelDebug, "peer lost")) == strangers-1 }, "all but one at debug level")
	there.one(t, slog.LevelWarn, "peer lost")
}

func TestMemoryEvent(t *testing.T) {
	const limit = 2 << 20 // enough for an endpoint and some conns
	network := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.TCP()})
	l, d, _, there := world(t, network, rdmanet.ListenConfig{Backlog: 10000, Transport: &rdmanet.Transport{MemoryLimit: limit}})
	conns := dialAll(t, d, l)
	e := there.one(t, slog.LevelWarn, "memory limit reached")
	assert.EqualValues(t, limit, e["limit"])
	assert.InDelta(t, limit, e["used"], 8<<10)
	for _, c := range conns {
		require.NoError(t, c.(*rdmanet.Conn).SetLinger(0))
		require.NoError(t, c.Close())
	}
}

func TestHandshakeEvents(t *testing.T) {
	network := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.TCP()})
	l, _, _, there := world(t, network, rdmanet.ListenConfig{AcceptTCP: false})
	const strangers = 4
	for range strangers {
		nc, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		_, err = nc.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		require.NoError(t, err)
		defer nc.Close()
	}
	rdmatest.Eventually(t, func() bool { return len(there.all(slog.LevelDebug, "handshake failed")) == strangers-1 }, "the others")
	e := there.one(t, slog.LevelWarn, "handshake failed")
	assert.Equal(t, "not rdmanet", e["reason"])
	assert.NotEmpty(t, e["error"])
	assert.NotEmpty(t, e["peer"])
}

// keeping is a simulated network that keeps the endpoints that it opens.
type keeping struct {
	*simfabric.Network
	mu   sync.Mutex
	ends []fabric.Endpoint
}

func (k *keeping) Open(provider string, src netip.Addr) (fabric.Endpoint, error) {
	ep, err := k.Network.Open(provider, src)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ends = append(k.ends, ep)
	return ep, err
}

// TestAbandonedEvent: a deadline that ends a fabric call that hangs is logged as an abandoned endpoint.
func TestAbandonedEvent(t *testing.T) {
	k := &keeping{Network: simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.Shm()})}
	l, d, here, there := world(t, k, rdmanet.ListenConfig{})
	c, s := rdmatest.Meet(t, d, l)
	for _, ep := range k.ends {
		k.Hang(ep)
	}
	for _, x := range []*rdmanet.Conn{c, s} {
		var err error
		for err == nil || errors.Is(err, os.ErrDeadlineExceeded) { // the deadline may pass before the fabric is called
			require.NoError(t, x.SetDeadline(time.Now().Add(10*time.Millisecond)))
			_, err = x.Write([]byte("hello"))
		}
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
	for _, j := range []*journal{here, there} {
		assert.Equal(t, "shm", j.one(t, slog.LevelWarn, "endpoint abandoned")["provider"])
	}
	_ = c.Close()
	_ = s.Close()
}

// TestLoggersMayBeSlow: the code that refuses a conn holds a lock that all conns need, so
// it does not wait for a logger.
func TestLoggersMayBeSlow(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	stuck := &stuckHandler{Handler: slog.DiscardHandler, release: make(chan struct{})}
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Backlog: 1, Logger: slog.New(stuck)})
	d := &rdmanet.Dialer{Transport: tr}
	c, s := rdmatest.Meet(t, d, l)
	waiting, err := d.Dial("rdma", l.Addr().String())
	require.NoError(t, err)
	_, err = d.Dial("rdma", l.Addr().String())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	rdmatest.Eventually(t, stuck.called, "the logger is told")
	rdmatest.Echo(t, c, s)
	close(stuck.release)
	rdmatest.CloseAll(t, c, s, waiting, rdmatest.Accept(t, l))
}

type stuckHandler struct {
	slog.Handler
	release chan struct{}
	mu      sync.Mutex
	calls   int
}

func (h *stuckHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn
}

func (h *stuckHandler) Handle(context.Context, slog.Record) error {
	h.mu.Lock()
	h.calls++
	h.mu.Unlock()
	<-h.release
	return nil
}

func (h *stuckHandler) called() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls > 0
}

// TestEventsDocumented: docs/operations.md lists every event and attribute.
func TestEventsDocumented(t *testing.T) {
	source, err := os.ReadFile("events.go")
	require.NoError(t, err)
	doc, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	events := regexp.MustCompile(`"rdmanet: [^"]+"`).FindAllString(string(source), -1)
	require.NotEmpty(t, events)
	attrs := regexp.MustCompile(`slog\.\w+\("(\w+)"`).FindAllStringSubmatch(string(source), -1)
	require.NotEmpty(t, attrs)
	for _, e := range events {
		assert.Contains(t, string(doc), "`"+strings.Trim(e, `"`)+"`")
	}
	for _, a := range attrs {
		assert.Contains(t, string(doc), "`"+a[1]+"`")
	}
}
