package rdmanet_test

import (
	"errors"
	"io"
	"math"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// testEmptyAsTCP: Read and Write of nothing return what they return on TCP, whatever has
// happened to the conn.
func testEmptyAsTCP(t *testing.T, a, b *rdmanet.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	ta, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	tb, err := l.Accept()
	require.NoError(t, err)
	type conn interface {
		net.Conn
		CloseRead() error
		CloseWrite() error
	}
	past := time.Unix(1, 0)
	for _, step := range []struct {
		name string
		do   func(a, b conn) error
	}{
		{"after the read deadline", func(a, _ conn) error { return a.SetReadDeadline(past) }},
		{"after the write deadline", func(a, _ conn) error { return a.SetWriteDeadline(past) }},
		{"without deadlines", func(a, _ conn) error { return a.SetDeadline(time.Time{}) }},
		{"at the end of what comes", func(a, b conn) error {
			err := b.CloseWrite()
			_, eof := a.Read(make([]byte, 1))
			return errors.Join(err, map[bool]error{false: eof}[eof == io.EOF])
		}},
		{"after CloseRead", func(a, _ conn) error { return a.CloseRead() }},
		{"after CloseWrite", func(a, _ conn) error { return a.CloseWrite() }},
		{"after Close", func(a, _ conn) error { return a.Close() }},
	} {
		var said [2]string
		for i, pair := range [2][2]conn{{ta.(conn), tb.(conn)}, {a, b}} {
			require.NoError(t, step.do(pair[0], pair[1]), step.name)
			_, rerr := pair[0].Read(nil)
			_, werr := pair[0].Write(nil)
			said[i] = sentinel(rerr) + ", " + sentinel(werr)
		}
		assert.Equal(t, said[0], said[1], "Read and Write of nothing "+step.name)
	}
	_ = tb.Close()
}

// sentinel returns the text of the first of these errors that err is.
func sentinel(err error) string {
	for _, s := range []error{net.ErrClosed, os.ErrDeadlineExceeded, io.EOF, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(err, s) {
			return s.Error()
		}
	}
	return map[bool]string{true: "nil", false: "another error"}[err == nil]
}

// testLongestLinger: the largest number of seconds does not overflow into a shorter linger.
func testLongestLinger(t *testing.T, a, b *rdmanet.Conn) {
	require.NoError(t, a.SetLinger(math.MaxInt))
	_, err := a.Write([]byte("x"))
	require.NoError(t, err)
	require.NoError(t, a.Close())
	got, err := io.ReadAll(b)
	require.NoError(t, err)
	require.Equal(t, "x", string(got))
}
