package rdmanet_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func TestListenErrors(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	taken := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
	for name, tt := range map[string]struct {
		network, address string
		providers        []string
		is               error
		text             string
	}{
		"network":   {"udp", ":0", nil, net.UnknownNetworkError("udp"), "listen udp: unknown network udp"},
		"no port":   {"rdma", "localhost", nil, nil, "missing port in address"},
		"port":      {"rdma", "127.0.0.1:nonsense", nil, nil, "nonsense"},
		"taken":     {"rdma", taken.Addr().String(), nil, syscall.EADDRINUSE, "listen rdma " + taken.Addr().String()},
		"provider":  {"rdma", "127.0.0.1:0", []string{"efa"}, rdmanet.ErrProviderUnavailable, "this machine offers tcp;ofi_rxm"},
		"misspelt":  {"rdma", "127.0.0.1:0", []string{"tpc"}, nil, `unknown provider "tpc"`},
		"elsewhere": {"rdma", "192.0.2.1:0", nil, syscall.EADDRNOTAVAIL, ""},
	} {
		t.Run(name, func(t *testing.T) {
			lc := rdmanet.ListenConfig{Transport: tr, Providers: tt.providers}
			l, err := lc.Listen(t.Context(), tt.network, tt.address)
			require.Error(t, err)
			assert.Nil(t, l)
			var oe *net.OpError
			require.ErrorAs(t, err, &oe)
			assert.Equal(t, "listen", oe.Op)
			assert.ErrorContains(t, err, tt.text)
			if tt.is != nil {
				assert.ErrorIs(t, err, tt.is)
			}
		})
	}
}

func TestAcceptDeadlineAndClose(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
	expect := func(want error, timeout bool) {
		t.Helper()
		_, err := l.Accept()
		require.ErrorIs(t, err, want)
		var ne net.Error
		require.ErrorAs(t, err, &ne)
		assert.Equal(t, timeout, ne.Timeout())
		assert.ErrorContains(t, err, "accept rdma "+l.Addr().String())
	}
	require.NoError(t, l.SetDeadline(time.Now().Add(-time.Second)))
	expect(os.ErrDeadlineExceeded, true)
	require.NoError(t, l.SetDeadline(time.Now().Add(5*time.Millisecond)))
	expect(os.ErrDeadlineExceeded, true)

	// A deadline that is set later ends an Accept that is already waiting.
	require.NoError(t, l.SetDeadline(time.Time{}))
	time.AfterFunc(5*time.Millisecond, func() { _ = l.SetDeadline(time.Now()) })
	expect(os.ErrDeadlineExceeded, true)

	require.NoError(t, l.SetDeadline(time.Time{}))
	time.AfterFunc(5*time.Millisecond, func() { _ = l.Close() })
	expect(net.ErrClosed, false)
	assert.ErrorIs(t, l.Close(), net.ErrClosed)
	assert.ErrorIs(t, l.SetDeadline(time.Now()), net.ErrClosed)
	_, err := (&rdmanet.Dialer{Transport: tr}).Dial("rdma", l.Addr().String())
	assert.ErrorIs(t, err, syscall.ECONNREFUSED)
}

func TestBacklog(t *testing.T) {
	onEach(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: providers, Backlog: 2})
		d := &rdmanet.Dialer{Transport: tr, Providers: providers}
		var clients []net.Conn
		for range 2 {
			c, err := d.Dial("rdma", l.Addr().String())
			require.NoError(t, err, "before Accept")
			clients = append(clients, c)
		}
		_, err := d.Dial("rdma", l.Addr().String())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		for _, c := range clients {
			s := rdmatest.Accept(t, l)
			rdmatest.Echo(t, c, s)
			defer rdmatest.CloseAll(t, c, s)
		}
		c, s := rdmatest.Meet(t, d, l)
		rdmatest.Echo(t, c, s)
		assert.Equal(t, 6, tr.Stats().Conns)
		rdmatest.CloseAll(t, c, s)
	})
}

func TestConnsOutliveTheListener(t *testing.T) {
	onEach(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: providers})
		d := &rdmanet.Dialer{Transport: tr, Providers: providers}
		c, s := rdmatest.Meet(t, d, l)
		waiting, err := d.Dial("rdma", l.Addr().String())
		require.NoError(t, err)
		require.NoError(t, l.Close())
		rdmatest.Echo(t, c, s)
		_, err = d.Dial("rdma", l.Addr().String())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		_, err = waiting.Read(make([]byte, 1))
		assert.ErrorIs(t, err, syscall.ECONNRESET, "was never accepted")
		rdmatest.CloseAll(t, c, s, waiting)
	})
}

// A listener goes on serving while others send nonsense or nothing.
func TestBadInput(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	var log lockedBuffer
	config := rdmanet.ListenConfig{Transport: tr, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	patient := rdmatest.Listen(t, config)
	config.HandshakeTimeout = 300 * time.Millisecond
	hasty := rdmatest.Listen(t, config)
	d := &rdmanet.Dialer{Transport: tr}
	preamble := string((&framing.Preamble{Version: framing.Version}).Append(nil))
	for name, tt := range map[string]struct {
		send, reason string
		hold         bool // do not end the stream
	}{
		"another protocol":      {"GET / HTTP/1.1\r\n\r\n", "not rdmanet", false},
		"another version":       {"RDMN\x63\x00\x00\x00", "version", false},
		"silence":               {"", "timeout", true},
		"no hello":              {preamble, "timeout", true},
		"half a hello":          {preamble + "\x40\x00\x00\x00\x01\x00", "timeout", true},
		"half a hello, and end": {preamble + "\x40\x00\x00\x00\x01\x00", "connection lost", false},
		"oversized hello":       {preamble + "\xff\xff\xff\xff\x01", "malformed", false},
		"garbage hello":         {preamble + "\x05\x00\x00\x00\x01\xff\xff\xff\xff", "malformed", false},
		"TLS":                   {string((&framing.Preamble{Version: framing.Version, TLS: true}).Append(nil)), "tls mismatch", false},
	} {
		t.Run(name, func(t *testing.T) {
			l := patient
			if tt.hold {
				l = hasty
			}
			before := tr.Stats().HandshakeFailures[tt.reason]
			nc, err := net.Dial("tcp", l.Addr().String())
			require.NoError(t, err)
			defer nc.Close()
			_, err = nc.Write([]byte(tt.send))
			require.NoError(t, err)
			if !tt.hold {
				_ = nc.(*net.TCPConn).CloseWrite() // fails if the listener has hung up
			}
			rdmatest.Eventually(t, func() bool { return tr.Stats().HandshakeFailures[tt.reason] == before+1 }, tt.reason)
			require.NoError(t, nc.SetReadDeadline(time.Now().Add(rdmatest.Patience)))
			_, err = io.Copy(io.Discard, nc)
			assert.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the listener hangs up")

			var c net.Conn
			rdmatest.Eventually(t, func() bool { // a busy machine may be too slow for the hasty listener
				c, err = d.Dial("rdma", l.Addr().String())
				return err == nil
			}, "the listener goes on serving")
			s := rdmatest.Accept(t, l)
			rdmatest.Echo(t, c, s)
			rdmatest.CloseAll(t, c, s)
		})
	}
	rdmatest.Eventually(t, func() bool { return strings.Contains(log.String(), "handshake failed") }, "it is told")
	assert.Contains(t, log.String(), "peer=127.0.0.1:")
}

type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

func TestAuthorize(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	welcome := false
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Authorize: func(_ context.Context, p rdmanet.PeerInfo) error {
		assert.Nil(t, p.TLS)
		assert.IsType(t, (*net.TCPAddr)(nil), p.RemoteAddr)
		if !welcome {
			return errors.New("guests are not served")
		}
		return nil
	}})
	d := &rdmanet.Dialer{Transport: tr, Fallback: rdmanet.FallbackTCP}
	_, err := d.Dial("rdma", l.Addr().String())
	require.ErrorIs(t, err, rdmanet.ErrUnauthorized)
	assert.ErrorContains(t, err, "guests are not served")
	welcome = true
	c, s := rdmatest.Meet(t, d, l)
	rdmatest.CloseAll(t, c, s)
}

func TestListenContext(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	ctx, cancel := context.WithCancel(t.Context())
	lc := rdmanet.ListenConfig{Transport: tr}
	l, err := lc.Listen(ctx, "tcp", "localhost:0")
	require.NoError(t, err)
	cancel()
	c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr}, l.(*rdmanet.Listener))
	rdmatest.CloseAll(t, c, s)
}

func TestContradictingSettings(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	tr.DeadAfter = rdmanet.DefaultHeartbeatInterval
	tr.HeartbeatInterval = rdmanet.DefaultHeartbeatInterval // the default would adapt
	const text = "rdmanet: Transport.HeartbeatInterval: 5s is not below Transport.DeadAfter, 5s; use a third of that"
	_, err := (&rdmanet.ListenConfig{Transport: tr}).Listen(t.Context(), "rdma", "127.0.0.1:0")
	assert.EqualError(t, err, "listen rdma: "+text)
	_, err = (&rdmanet.Dialer{Transport: tr}).Dial("rdma", silent(t))
	assert.EqualError(t, err, "dial rdma: "+text)
}
