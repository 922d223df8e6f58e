package rdmatest

import (
	"crypto/sha256"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// Patience is how long a test waits for what should happen at once.
const Patience = 10 * time.Second

// Over runs a test over each real provider.
func Over(t *testing.T, test func(t *testing.T, tr *rdmanet.Transport, providers []string)) {
	t.Helper()
	for _, name := range Providers {
		t.Run(name, func(t *testing.T) {
			tr := new(rdmanet.Transport)
			Cleanly(t, tr)
			test(t, tr, []string{name})
		})
	}
}

// Listen listens at any free port until the test is over.
func Listen(t *testing.T, lc rdmanet.ListenConfig) *rdmanet.Listener {
	t.Helper()
	l, err := lc.Listen(t.Context(), "rdma", testenv.Address())
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l.(*rdmanet.Listener)
}

// Meet dials l and accepts the conn.
func Meet(t *testing.T, d *rdmanet.Dialer, l *rdmanet.Listener) (client, server *rdmanet.Conn) {
	t.Helper()
	c, err := d.DialContext(t.Context(), "rdma", l.Addr().String())
	require.NoError(t, err)
	return c.(*rdmanet.Conn), Accept(t, l)
}

// Accept accepts the next conn of l.
func Accept(t *testing.T, l *rdmanet.Listener) *rdmanet.Conn {
	t.Helper()
	require.NoError(t, l.SetDeadline(time.Now().Add(Patience)))
	s, err := l.Accept()
	require.NoError(t, err)
	require.IsType(t, (*rdmanet.Conn)(nil), s)
	return s.(*rdmanet.Conn)
}

// AcceptPlain accepts the next conn of l, which uses plain TCP.
func AcceptPlain(t *testing.T, l *rdmanet.Listener) *net.TCPConn {
	t.Helper()
	require.NoError(t, l.SetDeadline(time.Now().Add(Patience)))
	s, err := l.Accept()
	require.NoError(t, err)
	require.IsType(t, (*net.TCPConn)(nil), s)
	return s.(*net.TCPConn)
}

// Echo checks that a conn works in both directions.
func Echo(t *testing.T, client, server net.Conn) {
	t.Helper()
	for _, x := range [][2]net.Conn{{client, server}, {server, client}} {
		_, err := x[0].Write([]byte("hello"))
		require.NoError(t, err)
		buf := make([]byte, 5)
		require.NoError(t, x[1].SetReadDeadline(time.Now().Add(Patience)))
		_, err = io.ReadFull(x[1], buf)
		require.NoError(t, err)
		require.Equal(t, "hello", string(buf))
		require.NoError(t, x[1].SetReadDeadline(time.Time{}))
	}
}

// CloseAll closes conns at the same time, since each side waits for the other.
func CloseAll(t *testing.T, conns ...net.Conn) {
	t.Helper()
	var wg sync.WaitGroup
	for _, c := range conns {
		wg.Go(func() { assert.NoError(t, c.Close()) })
	}
	wg.Wait()
}

// Eventually waits until other goroutines have made condition true.
func Eventually(t *testing.T, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, Patience, time.Millisecond, what)
}

// OnlyReader hides all methods but Read, such as WriteTo.
type OnlyReader struct{ io.Reader }

// OnlyWriter hides all methods but Write, such as ReadFrom.
type OnlyWriter struct{ io.Writer }

// ListenAt is Listen for any address of this host. It also returns the port.
func ListenAt(t *testing.T, lc rdmanet.ListenConfig, address string) (l *rdmanet.Listener, port string) {
	t.Helper()
	ln, err := lc.Listen(t.Context(), "rdma", address)
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	_, port, err = net.SplitHostPort(ln.Addr().String())
	require.NoError(t, err)
	return ln.(*rdmanet.Listener), port
}

// Serve calls serve with each conn that l accepts, in a goroutine of its own. It returns when l is
// closed and all calls have returned.
func Serve(l net.Listener, serve func(net.Conn)) {
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		conns.Go(func() { serve(c) })
	}
}

// Visit dials, closes the conn again, and returns its ConnInfo.
func Visit(t *testing.T, d *rdmanet.Dialer, l *rdmanet.Listener, network, address string) rdmanet.ConnInfo {
	t.Helper()
	c, err := d.Dial(network, address)
	require.NoError(t, err)
	CloseAll(t, c, Accept(t, l))
	return InfoOf(t, c)
}

// InfoOf returns what there is to know of a conn, also of one that uses plain TCP.
func InfoOf(t *testing.T, c net.Conn) rdmanet.ConnInfo {
	t.Helper()
	info, ok := rdmanet.InfoOf(c.RemoteAddr())
	require.True(t, ok)
	return info
}

// WriteRandom writes a file of size bytes, and returns their SHA-256 sum.
func WriteRandom(t *testing.T, name string, size int64) []byte {
	t.Helper()
	f, err := os.Create(name)
	require.NoError(t, err)
	defer f.Close()
	sum := sha256.New()
	_, err = io.CopyN(io.MultiWriter(f, sum), rand.NewChaCha8([32]byte{1}), size)
	require.NoError(t, err)
	return hash.Hash(sum).Sum(nil)
}
