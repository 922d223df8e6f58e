package rdmanet_test

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// greeting begins like a handshake, and is no longer than what a listener looks at, so an
// accepted conn has to yield all of it again.
const greeting = "RDgreet!"

// plainPair returns a plain TCP client that has sent text, and its accepted conn.
func plainPair(t *testing.T, l *rdmanet.Listener, text string) (client *net.TCPConn, server *rdmanet.Conn) {
	t.Helper()
	nc, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { nc.Close() })
	_, err = io.WriteString(nc, text)
	require.NoError(t, err)
	server = rdmatest.Accept(t, l)
	t.Cleanup(func() { server.Close() })
	require.Equal(t, "tcp", server.RemoteAddr().Network())
	return nc.(*net.TCPConn), server
}

func plainListener(t *testing.T) *rdmanet.Listener {
	t.Helper()
	return rdmatest.Listen(t, rdmanet.ListenConfig{Transport: simulated(t, simfabric.TCP()), AcceptTCP: true})
}

// greeted takes the greeting off what is read, a byte at a time. So until the greeting is
// over, its Reads get the replayed bytes first.
type greeted struct {
	net.Conn
	mu   sync.Mutex // guards left
	left string
}

func (c *greeted) Read(b []byte) (int, error) {
	if err := c.greet(); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

func (c *greeted) greet() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.left != "" {
		var b [1]byte
		if _, err := c.Conn.Read(b[:]); err != nil {
			return err
		}
		if b[0] != c.left[0] {
			return io.ErrUnexpectedEOF
		}
		c.left = c.left[1:]
	}
	return nil
}

// TestPlainNettest: what an AcceptTCP listener accepts from plain clients is a net.Conn
// like any other, both while it has bytes to replay and afterwards.
func TestPlainNettest(t *testing.T) {
	l := plainListener(t)
	for name, turned := range map[string]bool{"server first": false, "client first": true} {
		t.Run(name, func(t *testing.T) {
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				client, accepted := plainPair(t, l, greeting)
				server := &greeted{Conn: accepted, left: greeting}
				stop = func() {
					_ = client.Close()
					_ = accepted.Close()
				}
				if turned {
					return client, server, stop, nil
				}
				return server, client, stop, nil
			})
		})
	}
}

// TestPlainRules: Close and deadlines take precedence over bytes that are there, and
// concurrent calls share those bytes.
func TestPlainRules(t *testing.T) {
	l := plainListener(t)
	long := time.Unix(1, 0)
	for name, test := range map[string]func(t *testing.T, client *net.TCPConn, server *rdmanet.Conn){
		"deadline": func(t *testing.T, _ *net.TCPConn, server *rdmanet.Conn) {
			require.NoError(t, server.SetReadDeadline(long))
			n, err := server.Read(make([]byte, 1))
			assert.Zero(t, n)
			isTimeoutOf(t, err, "read", server)
			_, err = io.Copy(io.Discard, server)
			isTimeoutOf(t, err, "read", server)
			require.NoError(t, server.SetReadDeadline(time.Time{}))
			got := make([]byte, len(greeting))
			_, err = io.ReadFull(server, got)
			require.NoError(t, err)
			assert.Equal(t, greeting, string(got), "nothing is lost")
		},
		"close": func(t *testing.T, _ *net.TCPConn, server *rdmanet.Conn) {
			require.NoError(t, server.Close())
			for _, b := range [][]byte{nil, make([]byte, 1)} {
				_, err := server.Read(b)
				assert.ErrorIs(t, err, net.ErrClosed)
			}
			_, err := io.Copy(io.Discard, server)
			assert.ErrorIs(t, err, net.ErrClosed)
			assert.ErrorIs(t, server.Close(), net.ErrClosed)
			assert.ErrorIs(t, server.CloseRead(), net.ErrClosed)
		},
		"close read": func(t *testing.T, client *net.TCPConn, server *rdmanet.Conn) {
			_, err := client.Write([]byte("what is in the system's buffer"))
			require.NoError(t, err)
			_, err = server.Read(make([]byte, 1))
			require.NoError(t, err)
			require.NoError(t, server.CloseRead())
			for range 2 {
				n, err := server.Read(make([]byte, 100))
				assert.Zero(t, n)
				assert.Equal(t, io.EOF, err)
			}
			moved, err := io.Copy(io.Discard, server)
			assert.NoError(t, err)
			assert.Zero(t, moved)
			_, err = server.Write([]byte("still open"))
			require.NoError(t, err)
			require.NoError(t, server.CloseWrite())
			got, err := io.ReadAll(client)
			require.NoError(t, err)
			assert.Equal(t, "still open", string(got))
		},
		"empty reads": func(t *testing.T, _ *net.TCPConn, server *rdmanet.Conn) {
			n, err := server.Read(nil)
			assert.Zero(t, n)
			assert.NoError(t, err)
			got := make([]byte, len(greeting))
			_, err = io.ReadFull(server, got)
			require.NoError(t, err)
			assert.Equal(t, greeting, string(got))
			_, err = server.Read(nil) // nothing is there, and it does not wait
			assert.NoError(t, err)
		},
		"concurrent reads": func(t *testing.T, client *net.TCPConn, server *rdmanet.Conn) {
			require.NoError(t, client.CloseWrite())
			var wg sync.WaitGroup
			got := make([][]byte, 4)
			for i := range got {
				wg.Go(func() {
					b := make([]byte, 1)
					for {
						n, err := server.Read(b)
						got[i] = append(got[i], b[:n]...)
						if err != nil {
							assert.Equal(t, io.EOF, err)
							return
						}
					}
				})
			}
			wg.Wait()
			assert.ElementsMatch(t, []byte(greeting), bytes.Join(got, nil))
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := plainPair(t, l, greeting)
			test(t, client, server)
		})
	}
}

func isTimeoutOf(t *testing.T, err error, op string, c *rdmanet.Conn) {
	t.Helper()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	oe, ok := err.(*net.OpError) //nolint:errorlint // the outermost, as nettest looks at it
	require.True(t, ok)
	assert.True(t, oe.Timeout())
	assert.Equal(t, op, oe.Op)
	assert.Equal(t, c.RemoteAddr().String(), oe.Addr.String())
	assert.Equal(t, c.LocalAddr().String(), oe.Source.String())
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
	late := rdmatest.Accept(t, l)
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
