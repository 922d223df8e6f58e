package rdmanet_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func tcpListener(t *testing.T) *net.TCPListener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	return ln.(*net.TCPListener)
}

// inherited returns a listener made from a descriptor, which is what systemd hands down.
func inherited(t *testing.T) net.Listener {
	t.Helper()
	parent := tcpListener(t)
	f, err := parent.File()
	require.NoError(t, err)
	require.NoError(t, parent.Close())
	ln, err := net.FileListener(f)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	return ln
}

// wrapped is a listener around another one, like those that count or limit conns.
type wrapped struct {
	net.Listener
	conn func(net.Conn) net.Conn
}

func (w wrapped) Accept() (net.Conn, error) {
	c, err := w.Listener.Accept()
	if err == nil && w.conn != nil {
		c = w.conn(c)
	}
	return c, err
}

// counted is a conn of a wrapped listener.
type counted struct{ net.Conn }

// nowhere is a conn with addresses of the test's choice instead of TCP's.
type nowhere struct {
	net.Conn
	local, remote net.Addr
}

func (c nowhere) LocalAddr() net.Addr  { return c.local }
func (c nowhere) RemoteAddr() net.Addr { return c.remote }

func isClosed(t *testing.T, ln net.Listener) bool {
	t.Helper()
	if d, ok := ln.(interface{ SetDeadline(time.Time) error }); ok {
		return errors.Is(d.SetDeadline(time.Time{}), net.ErrClosed)
	}
	_, err := ln.Accept()
	return errors.Is(err, net.ErrClosed)
}

func TestListenOn(t *testing.T) {
	for name, tt := range map[string]struct {
		ln        func(t *testing.T) net.Listener
		acceptTCP bool
	}{
		"a listener":   {func(t *testing.T) net.Listener { return tcpListener(t) }, false},
		"a descriptor": {inherited, false},
		"AcceptTCP":    {inherited, true},
		"wrapped":      {func(t *testing.T) net.Listener { return wrapped{tcpListener(t), nil} }, false},
		"wrapped conns": {func(t *testing.T) net.Listener {
			return wrapped{tcpListener(t), func(c net.Conn) net.Conn { return counted{c} }}
		}, false},
		"over its deadline": {func(t *testing.T) net.Listener {
			ln := tcpListener(t)
			require.NoError(t, ln.SetDeadline(time.Unix(1, 0)))
			return ln
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			tr := simulated(t, simfabric.TCP())
			ln := tt.ln(t)
			lc := rdmanet.ListenConfig{Transport: tr, AcceptTCP: tt.acceptTCP}
			got, err := lc.ListenOn(ln)
			require.NoError(t, err)
			l := got.(*rdmanet.Listener)
			assert.Equal(t, ln.Addr().String(), l.Addr().String())
			c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr}, l)
			rdmatest.Echo(t, c, s)
			rdmatest.CloseAll(t, c, s)
			if tt.acceptTCP {
				plain, err := net.Dial("tcp", l.Addr().String())
				require.NoError(t, err)
				_, err = plain.Write([]byte("x"))
				require.NoError(t, err)
				s := rdmatest.AcceptPlain(t, l)
				got := make([]byte, 1)
				_, err = io.ReadFull(s, got)
				require.NoError(t, err)
				assert.Equal(t, "x", string(got))
				rdmatest.CloseAll(t, plain, s)
			}
			require.NoError(t, l.Close())
			assert.True(t, isClosed(t, ln), "it owns the listener")
		})
	}
}

func TestListenOnRefuses(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	unix := func(t *testing.T) net.Listener {
		ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
		require.NoError(t, err)
		return ln
	}
	tcp := func(t *testing.T) net.Listener { return tcpListener(t) }
	for name, tt := range map[string]struct {
		lc   rdmanet.ListenConfig
		ln   func(t *testing.T) net.Listener
		is   error
		text string
	}{
		"nothing":              {rdmanet.ListenConfig{}, func(*testing.T) net.Listener { return nil }, rdmanet.ErrConfig, "there is no listener"},
		"a nil pointer":        {rdmanet.ListenConfig{}, func(*testing.T) net.Listener { return (*net.TCPListener)(nil) }, rdmanet.ErrConfig, "there is no listener"},
		"a Unix socket":        {rdmanet.ListenConfig{}, unix, rdmanet.ErrConfig, "a *net.UnixListener at "},
		"one of ours":          {rdmanet.ListenConfig{}, func(t *testing.T) net.Listener { return rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr}) }, rdmanet.ErrConfig, "a *rdmanet.Listener at 127.0.0.1:"},
		"plain over a wrapper": {rdmanet.ListenConfig{AcceptTCP: true}, func(t *testing.T) net.Listener { return wrapped{tcpListener(t), nil} }, rdmanet.ErrConfig, "leave AcceptTCP out"},
		"settings":             {rdmanet.ListenConfig{Backlog: -1}, tcp, rdmanet.ErrConfig, "Backlog"},
		"certificates":         {rdmanet.ListenConfig{TLSConfig: new(tls.Config)}, tcp, rdmanet.ErrConfig, "certificate"},
		"no provider":          {rdmanet.ListenConfig{Providers: []string{"efa"}}, tcp, rdmanet.ErrProviderUnavailable, "this machine offers"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.lc.Transport = tr
			ln := tt.ln(t)
			l, err := tt.lc.ListenOn(ln)
			assert.Nil(t, l)
			var oe *net.OpError
			require.ErrorAs(t, err, &oe)
			assert.Equal(t, "listen", oe.Op)
			assert.ErrorIs(t, err, tt.is)
			assert.ErrorContains(t, err, tt.text)
			if tcp, ok := ln.(*net.TCPListener); ln != nil && (!ok || tcp != nil) {
				assert.True(t, isClosed(t, ln), "also when it fails")
			}
		})
	}
	closedTransport := rdmanet.NewTransport(simfabric.New(simfabric.Config{Personality: simfabric.TCP()}))
	require.NoError(t, closedTransport.Close())
	ln := tcpListener(t)
	_, err := (&rdmanet.ListenConfig{Transport: closedTransport}).ListenOn(ln)
	require.ErrorIs(t, err, net.ErrClosed)
	assert.True(t, isClosed(t, ln))
}

// Conns without TCP addresses, or with TLS of their own, are turned away, and the next one is
// served.
func TestListenOnOddConns(t *testing.T) {
	unix := &net.UnixAddr{Name: "x", Net: "unix"}
	tcp := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}
	at := func(local, remote net.Addr) func(net.Conn) net.Conn {
		return func(c net.Conn) net.Conn { return nowhere{c, local, remote} }
	}
	for name, odd := range map[string]func(net.Conn) net.Conn{
		"no address":     at(nil, nil),
		"a nil one":      at((*net.TCPAddr)(nil), tcp),
		"another local":  at(unix, tcp),
		"another remote": at(tcp, unix),
		"TLS of its own": func(c net.Conn) net.Conn { return tls.Server(c, new(tls.Config)) },
	} {
		t.Run(name, func(t *testing.T) {
			tr := simulated(t, simfabric.TCP())
			bad := true
			ln := wrapped{tcpListener(t), func(c net.Conn) net.Conn {
				if bad {
					bad = false
					return odd(c)
				}
				return c
			}}
			l, err := (&rdmanet.ListenConfig{Transport: tr}).ListenOn(ln)
			require.NoError(t, err)
			stranger, err := net.Dial("tcp", l.Addr().String())
			require.NoError(t, err)
			_, err = stranger.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
			require.NoError(t, stranger.Close())
			rdmatest.Eventually(t, func() bool { return tr.Stats().HandshakeFailures["other"] == 1 }, "it is counted")
			c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr}, l.(*rdmanet.Listener))
			rdmatest.CloseAll(t, c, s)
			require.NoError(t, l.Close())
		})
	}
}

// Accept returns if somebody else closes the listener, although it is not theirs any more.
func TestListenOnIsClosedByOthers(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	ln := tcpListener(t)
	l, err := (&rdmanet.ListenConfig{Transport: tr}).ListenOn(ln)
	require.NoError(t, err)
	time.AfterFunc(10*time.Millisecond, func() { ln.Close() })
	require.NoError(t, l.(*rdmanet.Listener).SetDeadline(time.Now().Add(rdmatest.Patience)))
	_, err = l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	_ = l.Close()
}

func TestListenControl(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	var calls []string
	lc := rdmanet.ListenConfig{Transport: tr, Control: func(network, address string, c syscall.RawConn) error {
		calls = append(calls, network+" "+address)
		return c.Control(func(fd uintptr) { assert.NotZero(t, fd) })
	}}
	l, err := lc.Listen(context.Background(), "rdma4", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	assert.Equal(t, []string{"tcp4 127.0.0.1:0"}, calls)
	l, err = lc.ListenOn(tcpListener(t))
	require.NoError(t, err)
	require.NoError(t, l.Close())
	assert.Len(t, calls, 1, "there is a socket already")
	lc.Control = func(string, string, syscall.RawConn) error { return os.ErrPermission }
	_, err = lc.Listen(context.Background(), "rdma", "127.0.0.1:0")
	require.ErrorIs(t, err, os.ErrPermission)
}
