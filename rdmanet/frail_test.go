package rdmanet_test

import (
	"errors"
	"log/slog"
	"net/netip"
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

// frail is a simulated fabric whose endpoints fail when the test says so.
type frail struct {
	*simfabric.Network
	mu     sync.Mutex
	broken error // what opening an endpoint fails with, nil if it works
	open   []fabric.Endpoint
}

func (f *frail) Open(provider string, src netip.Addr) (fabric.Endpoint, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken != nil {
		return nil, f.broken
	}
	ep, err := f.Network.Open(provider, src)
	f.open = append(f.open, ep)
	return ep, err
}

// fail breaks each open endpoint by how. From then on, opening one fails with err, or works if err is nil.
func (f *frail) fail(how func(fabric.Endpoint), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken = err
	for _, ep := range f.open {
		how(ep)
	}
	f.open = nil
}

var errDevice = errors.New("the device is on fire")

// frailPair returns a frail fabric, a Transport on it, and a listener on the same network
// whose own endpoints do not fail.
func frailPair(t *testing.T, p simfabric.Personality) (f *frail, here *rdmanet.Transport, l *rdmanet.Listener) {
	t.Helper()
	f = &frail{Network: simfabric.New(simfabric.Config{Seed: 1, Personality: p})}
	here = rdmanet.NewTransport(f)
	rdmatest.Cleanly(t, here)
	there := rdmanet.NewTransport(f.Network)
	t.Cleanup(func() { assert.NoError(t, there.Close()) })
	return f, here, rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, AcceptTCP: true})
}

// TestFabricFailsInMidConnection: a fabric that fails ends its conns with an error. They
// never change to TCP silently, even if the Dialer may use TCP. The next Dial uses it,
// and says why.
func TestFabricFailsInMidConnection(t *testing.T) {
	for _, p := range []simfabric.Personality{simfabric.Shm(), simfabric.TCP(), simfabric.EFA()} {
		for name, how := range map[string]simfabric.Death{"errors": simfabric.DeathError, "refusals": simfabric.DeathRefuse} {
			t.Run(p.Provider+" "+name, func(t *testing.T) { testFabricFails(t, p, how, 0) })
			t.Run(p.Provider+" "+name+" while asleep", func(t *testing.T) { testFabricFails(t, p, how, 20*time.Millisecond) })
		}
	}
}

// testFabricFails makes the fabric fail some time after a Read has begun.
func testFabricFails(t *testing.T, p simfabric.Personality, how simfabric.Death, after time.Duration) {
	f, here, l := frailPair(t, p)
	var log lockedBuffer
	d := &rdmanet.Dialer{
		Transport: here, Fallback: rdmanet.FallbackTCP, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	}
	c, s := rdmatest.Meet(t, d, l)
	rdmatest.Echo(t, c, s)
	read := rdmatest.Begin(func() (int, error) { return c.Read(make([]byte, 1)) })
	time.Sleep(after)
	f.fail(func(ep fabric.Endpoint) { f.Kill(ep, how) }, errDevice)
	if p.PerPeer { // there is no device, and only its peer wakes a sleeper: let a call find out
		_, _ = c.Write([]byte("x"))
	}
	read.End(t, "Read", syscall.ECONNRESET)
	_, err := c.Write([]byte("x"))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	_, err = s.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	assert.Equal(t, p.Provider, c.Info().Provider)
	assert.NoError(t, c.Info().Fallback)
	for line := range strings.Lines(log.String()) {
		assert.Contains(t, line, "rdmanet: peer lost")
	}
	assert.Empty(t, here.Stats().Fallbacks)
	require.NoError(t, c.Close())
	require.NoError(t, s.Close())

	rdmatest.Eventually(t, func() bool { return here.Stats().Peers == 0 }, "the peer is gone")
	assert.Error(t, fallsBack(t, d, l, &log))
}

// fallsBack dials, checks that the conn uses plain TCP and that this is logged, and returns why it does.
func fallsBack(t *testing.T, d *rdmanet.Dialer, l *rdmanet.Listener, log *lockedBuffer) (reason error) {
	t.Helper()
	nc, err := d.Dial("rdma", l.Addr().String())
	require.NoError(t, err)
	_, err = nc.Write([]byte("first")) // AcceptTCP needs a client that speaks first
	require.NoError(t, err)
	s, info := rdmatest.AcceptPlain(t, l), rdmatest.InfoOf(t, nc)
	assert.Empty(t, info.Provider)
	assert.ErrorIs(t, info.Fallback, rdmanet.ErrNoProvider)
	rdmatest.Eventually(t, func() bool { return strings.Contains(log.String(), "using plain TCP") }, "it is logged")
	assert.Contains(t, log.String(), info.Fallback.Error())
	rdmatest.CloseAll(t, nc, s)
	return info.Fallback
}

// TestFabricDoesNotComeUp: for as long as a fabric does not come up, that is a reason to use TCP.
func TestFabricDoesNotComeUp(t *testing.T) {
	for _, p := range []simfabric.Personality{simfabric.Shm(), simfabric.TCP(), simfabric.EFA()} {
		t.Run(p.Provider, func(t *testing.T) {
			f, here, l := frailPair(t, p)
			var log lockedBuffer
			d := rdmanet.Dialer{Transport: here, Logger: slog.New(slog.NewTextHandler(&log, nil))}
			f.fail(nil, errDevice)
			_, err := d.Dial("rdma", l.Addr().String())
			require.ErrorIs(t, err, rdmanet.ErrNoProvider)
			assert.ErrorContains(t, err, errDevice.Error())
			assert.Empty(t, log.String(), "never unless it was chosen")

			d.Fallback = rdmanet.FallbackTCP
			assert.ErrorContains(t, fallsBack(t, &d, l, &log), errDevice.Error())
			f.fail(nil, nil)
			c, s := rdmatest.Meet(t, &d, l)
			assert.Equal(t, p.Provider, c.Info().Provider)
			rdmatest.CloseAll(t, c, s)
		})
	}
}
