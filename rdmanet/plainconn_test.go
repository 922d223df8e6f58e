package rdmanet_test

import (
	"bytes"
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
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// greeting begins as a rendezvous does, and is no longer than what a listener looks at:
// an accepted conn has all of it to yield again.
const greeting = "RDgreet!"

// plainPair is a plain TCP client that has sent something, and its accepted conn.
func plainPair(t *testing.T, l *rdmanet.Listener, text string) (client *net.TCPConn, server *rdmanet.Conn) {
	t.Helper()
	nc, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { nc.Close() })
	_, err = io.WriteString(nc, text)
	require.NoError(t, err)
	server = accept(t, l)
	t.Cleanup(func() { server.Close() })
	require.Equal(t, "tcp", server.RemoteAddr().Network())
	return nc.(*net.TCPConn), server
}

func plainListener(t *testing.T) *rdmanet.Listener {
	t.Helper()
	return listen(t, rdmanet.ListenConfig{Transport: simulated(t, simfabric.TCP()), AcceptTCP: true})
}

// greeted takes the greeting off what is read, a byte at a time. Until that is over, its
// Reads have the replayed bytes before them.
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
// like others, while it has replayed bytes and afterwards.
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

// TestPlainRules: Close and deadlines come before bytes that are there, and calls at the
// same time share these.
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
