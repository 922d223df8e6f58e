package rdmanet_test

import (
	"bytes"
	"crypto/tls"
	"io"
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

// greeting begins like a handshake, and is no longer than what a listener looks at.
const greeting = "RDgreet!"

// plainPair returns a plain TCP client that has sent text, and its accepted conn.
func plainPair(t *testing.T, l *rdmanet.Listener, text string) (client, server *net.TCPConn) {
	t.Helper()
	nc, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { nc.Close() })
	_, err = io.WriteString(nc, text)
	require.NoError(t, err)
	server = rdmatest.AcceptPlain(t, l)
	t.Cleanup(func() { server.Close() })
	return nc.(*net.TCPConn), server
}

func plainListener(t *testing.T) *rdmanet.Listener {
	t.Helper()
	return rdmatest.Listen(t, rdmanet.ListenConfig{Transport: simulated(t, simfabric.TCP()), AcceptTCP: true})
}

// TestPlainIsAsItWas: what an AcceptTCP listener accepts from plain clients is the TCP connection
// itself, with all of its bytes and without a deadline.
func TestPlainIsAsItWas(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	const limit = 100 * time.Millisecond
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, AcceptTCP: true, HandshakeTimeout: limit})
	client, server := plainPair(t, l, greeting)
	assert.Equal(t, []net.Addr{client.RemoteAddr(), client.LocalAddr()}, addrs(server))
	time.AfterFunc(2*limit, func() { _, _ = io.WriteString(client, " again") }) // the read fails if this does
	got := make([]byte, len(greeting+" again"))
	_, err := io.ReadFull(server, got)
	require.NoError(t, err)
	assert.Equal(t, greeting+" again", string(got))
	raw, err := server.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(uintptr) {}))
}

// banner is what a server says first, to clients that wait for it to speak.
const banner = "220 ready\r\n"

// greets accepts conns, sends banner on what wrap makes of each, and then echoes what
// arrives.
func greets(t *testing.T, l net.Listener, wrap func(net.Conn) net.Conn) {
	t.Helper()
	var wg sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				c := wrap(c)
				_, _ = io.WriteString(c, banner) // the clients see if this fails, and some only try to shake hands
				_, _ = io.Copy(c, c)
				_ = c.Close()
			})
		}
	})
}

func asItIs(c net.Conn) net.Conn { return c }

// greetsBack checks that the server speaks first, and then echoes.
func greetsBack(t *testing.T, c net.Conn) {
	t.Helper()
	require.NoError(t, c.SetDeadline(time.Now().Add(rdmatest.Patience)))
	got := make([]byte, len(banner))
	_, err := io.ReadFull(c, got)
	require.NoError(t, err)
	require.Equal(t, banner, string(got))
	sent := bytes.Repeat([]byte("answer "), 20_000)
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := c.Write(sent)
		assert.NoError(t, err)
		assert.NoError(t, c.(interface{ CloseWrite() error }).CloseWrite())
	})
	got, err = io.ReadAll(c)
	wg.Wait()
	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, got))
	require.NoError(t, c.Close())
}

// byteByByte writes each byte by itself.
type byteByByte struct{ *net.TCPConn }

func (c byteByByte) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var m int
		m, err = c.TCPConn.Write(b[n : n+1])
		n += m
	}
	return n, err
}

// TestPlainTLS: over TLS the client speaks first, whatever runs over it.
func TestPlainTLS(t *testing.T) {
	server, client := certificates(t)
	client.ServerName = "example.com"
	l := plainListener(t)
	greets(t, l, func(c net.Conn) net.Conn { return tls.Server(c, server) })
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for name, wrap := range map[string]func(net.Conn) net.Conn{
			"as it is":     asItIs,
			"byte by byte": func(c net.Conn) net.Conn { return byteByByte{c.(*net.TCPConn)} },
		} {
			t.Run(tls.VersionName(version)+" "+name, func(t *testing.T) {
				nc, err := net.Dial("tcp", l.Addr().String())
				require.NoError(t, err)
				defer nc.Close()
				config := client.Clone()
				config.MinVersion, config.MaxVersion = version, version
				greetsBack(t, tls.Client(wrap(nc), config))
			})
		}
	}
}

// TestServerSpeaksFirst tests the rule that ListenConfig.AcceptTCP states for servers whose
// clients wait for them to speak: they need two listeners, neither of them with AcceptTCP.
// With AcceptTCP, the connections of plain clients that wait are closed, and clients over
// the fabric are served.
func TestServerSpeaksFirst(t *testing.T) {
	const limit = 300 * time.Millisecond
	tr := simulated(t, simfabric.TCP(), simfabric.Net())
	mixed := rdmatest.Listen(t, rdmanet.ListenConfig{
		Transport: tr, Providers: []string{"net"}, AcceptTCP: true, HandshakeTimeout: limit,
	})
	fabric := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	for _, l := range []net.Listener{mixed, fabric, plain} {
		greets(t, l, asItIs)
	}
	d := &rdmanet.Dialer{Transport: tr, Providers: []string{"net"}, Timeout: rdmatest.Patience}
	falling := &rdmanet.Dialer{Transport: tr, Providers: []string{"tcp;ofi_rxm"}, Fallback: rdmanet.FallbackTCP, Timeout: rdmatest.Patience}
	type dialFunc func(network, address string) (net.Conn, error)
	for name, tt := range map[string]struct {
		dial   dialFunc
		to     net.Listener
		served bool
	}{
		"plain":                         {net.Dial, plain, true},
		"fabric":                        {d.Dial, fabric, true},
		"fabric, with AcceptTCP":        {d.Dial, mixed, true},
		"plain, with AcceptTCP":         {net.Dial, mixed, false},
		"fallback, to AcceptTCP":        {falling.Dial, mixed, false},
		"fallback, to a plain listener": {falling.Dial, plain, true},
	} {
		t.Run(name, func(t *testing.T) {
			before := tr.Stats().HandshakeFailures["timeout"]
			start := time.Now()
			c, err := tt.dial("tcp", tt.to.Addr().String())
			require.NoError(t, err)
			defer c.Close()
			if tt.served {
				greetsBack(t, c)
				return
			}
			require.NoError(t, c.SetReadDeadline(start.Add(rdmatest.Patience)))
			_, err = c.Read(make([]byte, 1))
			require.Equal(t, io.EOF, err)
			assert.GreaterOrEqual(t, time.Since(start), limit)
			rdmatest.Eventually(t, func() bool { return tr.Stats().HandshakeFailures["timeout"] == before+1 }, "it is counted")
		})
	}
}

// TestSilentPlainClients: silent clients hold up nobody. Those that speak in time are
// served, and for longer than a handshake may take.
func TestSilentPlainClients(t *testing.T) {
	const limit = 2 * time.Second
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: simulated(t, simfabric.TCP()), AcceptTCP: true, HandshakeTimeout: limit})
	quiet := make([]net.Conn, 100)
	for i := range quiet {
		nc, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		defer nc.Close()
		quiet[i] = nc
	}
	last := len(quiet) - 1
	start := time.Now()
	client, server := plainPair(t, l, greeting)
	assert.Less(t, time.Since(start), limit, "it does not wait for the others")
	_, err := io.WriteString(quiet[last], greeting)
	require.NoError(t, err)
	late := rdmatest.AcceptPlain(t, l)
	for _, nc := range quiet[:last] { // they are closed, so their time is over
		require.NoError(t, nc.SetReadDeadline(time.Now().Add(rdmatest.Patience)))
		_, err := nc.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
	}
	for _, pair := range [][2]net.Conn{{client, server}, {quiet[last], late}} {
		_, err := io.ReadFull(pair[1], make([]byte, len(greeting)))
		require.NoError(t, err)
		rdmatest.Echo(t, pair[0], pair[1])
	}
	rdmatest.CloseAll(t, late)
}
