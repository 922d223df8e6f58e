package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/pires/go-proxyproto"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// header reads the PROXY header that a backend finds at the start of a conn.
func header(t *testing.T, c net.Conn) *proxyproto.Header {
	t.Helper()
	h, err := proxyproto.Read(bufio.NewReaderSize(c, 16)) // nothing follows yet
	require.NoError(t, err)
	assert.EqualValues(t, 2, h.Version)
	return h
}

// The backend is told the client's address, whatever networks lie between them.
func TestSendProxy(t *testing.T) {
	for _, network := range []string{"tcp", "unix", "rdma"} {
		for _, target := range []string{"tcp", "unix", "rdma"} {
			t.Run(network+" to "+target, func(t *testing.T) {
				backend, to := listen(t, target)
				at, _ := start(t, network, &proxy{to: to, limits: limits{sendProxy: true}})
				client := connect(t, at)
				server := accept(t, backend)
				h := header(t, server)
				assert.True(t, h.Command.IsProxy())
				if network == "unix" {
					assert.Equal(t, proxyproto.UnixStream, h.TransportProtocol)
					assert.Equal(t, at.address, h.DestinationAddr.String())
				} else {
					assert.Equal(t, proxyproto.TCPv4, h.TransportProtocol)
					assert.Equal(t, client.LocalAddr().String(), h.SourceAddr.String())
					assert.Equal(t, client.RemoteAddr().String(), h.DestinationAddr.String())
				}
				pass(t, client, server)
			})
		}
	}
}

// A client's address passes through two proxies and the fabric between them. Bytes that
// arrive together with a header are not lost.
func TestAcceptProxy(t *testing.T) {
	backend, to := listen(t, "tcp")
	second, _ := start(t, "rdma", &proxy{to: to, limits: limits{acceptProxy: true, sendProxy: true}})
	at, _ := start(t, "tcp", &proxy{to: second, limits: limits{acceptProxy: true, sendProxy: true}})
	from := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1).To4(), Port: 4711}
	dest := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2).To4(), Port: 80}
	for version := byte(1); version <= 2; version++ {
		t.Run(fmt.Sprint("version ", version), func(t *testing.T) {
			h, err := proxyproto.HeaderProxyFromAddrs(version, from, dest).Format()
			require.NoError(t, err)
			client := connect(t, at)
			_, err = client.Write(append(h, "glued"...))
			require.NoError(t, err)
			server := accept(t, backend)
			r := bufio.NewReader(server)
			got, err := proxyproto.Read(r)
			require.NoError(t, err)
			assert.Equal(t, from.String(), got.SourceAddr.String())
			assert.Equal(t, dest.String(), got.DestinationAddr.String())
			text := make([]byte, len("glued"))
			_, err = io.ReadFull(r, text)
			require.NoError(t, err)
			assert.Equal(t, "glued", string(text))
			pass(t, client, server)
		})
	}
	t.Run("local", func(t *testing.T) {
		client := connect(t, at)
		_, err := (&proxyproto.Header{
			Version: 2, Command: proxyproto.LOCAL, TransportProtocol: proxyproto.TCPv4, SourceAddr: from, DestinationAddr: dest,
		}).WriteTo(client)
		require.NoError(t, err)
		server := accept(t, backend)
		assert.Equal(t, client.LocalAddr().String(), header(t, server).SourceAddr.String(), "the conn's own address")
		pass(t, client, server)
	})
}

// A client that sends no header is reset, and so is one whose header does not come in time.
func TestNoHeader(t *testing.T) {
	for name, text := range map[string]string{
		"another protocol": "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"nonsense":         "\r\n\r\n\x00\r\nQUIT\n\x2f\x99\xff\xff",
		"half of it":       "\r\n\r\n\x00\r\nQU",
		"nothing":          "",
	} {
		t.Run(name, func(t *testing.T) {
			backend, to := listen(t, "tcp")
			p := &proxy{to: to, limits: limits{acceptProxy: true, dial: 200 * time.Millisecond}}
			at, stop := start(t, "tcp", p)
			c, err := at.dial(t.Context(), new(rdmanet.Dialer))
			require.NoError(t, err)
			_, err = c.Write([]byte(text))
			require.NoError(t, err)
			assertResetConn(t, c, err)
			counted(t, p, noHeader, 1)
			stop()
			require.NoError(t, backend.(*net.TCPListener).SetDeadline(time.Now()))
			_, err = backend.Accept()
			var timeout net.Error
			assert.True(t, errors.As(err, &timeout) && timeout.Timeout(), "nobody has come")
		})
	}
}

// TestHostileHeader: a header may name an address that is no address, and gets nothing but printable
// text in one line into the log.
func TestHostileHeader(t *testing.T) {
	backend, to := listen(t, "tcp")
	log := new(lockedBuffer)
	at, _ := start(t, "tcp", &proxy{to: to, limits: limits{acceptProxy: true}, log: slog.New(slog.NewTextHandler(log, nil))})
	client := connect(t, at)
	_, err := (&proxyproto.Header{
		Version: 2, Command: proxyproto.PROXY, TransportProtocol: proxyproto.UnixStream,
		SourceAddr: &net.UnixAddr{Name: "a\x1b[2J\ntime=b\u202e\xff"}, DestinationAddr: &net.UnixAddr{Name: "b"},
	}).WriteTo(client)
	require.NoError(t, err)
	server := accept(t, backend)
	pass(t, client, server)
	require.NoError(t, errors.Join(client.Close(), server.Close()))
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "for=") }, patience, time.Millisecond)
	assert.Contains(t, log.String(), `for="a\x1b[2J\ntime=b\u202e\xff`)
	for line := range strings.Lines(log.String()) {
		assert.True(t, strings.HasPrefix(line, "time=2"), line)
		for _, r := range strings.TrimSuffix(line, "\n") {
			assert.True(t, unicode.IsPrint(r), "%q", r)
		}
	}
}

// lockedBuffer may be written and read at the same time.
type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
