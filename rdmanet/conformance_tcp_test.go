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
	ta, tb := tcpPipe(t)
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
		for i, pair := range [2][2]conn{{ta, tb}, {a, b}} {
			require.NoError(t, step.do(pair[0], pair[1]), step.name)
			_, rerr := pair[0].Read(nil)
			_, werr := pair[0].Write(nil)
			said[i] = sentinel(rerr) + ", " + sentinel(werr)
		}
		assert.Equal(t, said[0], said[1], "Read and Write of nothing "+step.name)
	}
	_ = tb.Close()
}

// conn is what *net.TCPConn and *rdmanet.Conn have in common.
type conn interface {
	net.Conn
	CloseRead() error
	CloseWrite() error
	SetLinger(sec int) error
}

func tcpPipe(t *testing.T) (a, b conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	ta, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	tb, err := l.Accept()
	require.NoError(t, err)
	return ta.(conn), tb.(conn)
}

// endings are sequences of calls on a pair of conns, each with the end of a conn in another way.
// What they return is to be the same as on TCP.
var endings = func() map[string][]func(a, b conn) error {
	closeWrite := func(a, _ conn) error { return a.CloseWrite() }
	closeRead := func(a, _ conn) error { return a.CloseRead() }
	write := func(a, _ conn) error {
		_, err := a.Write([]byte("x"))
		return err
	}
	read := func(a, _ conn) error {
		_, err := a.Read(make([]byte, 1))
		return err
	}
	past := func(a, _ conn) error { return a.SetWriteDeadline(time.Unix(1, 0)) }
	peer := func(f func(a, b conn) error) func(a, b conn) error { return func(a, b conn) error { return f(b, a) } }
	closes := func(a, _ conn) error { return a.Close() }
	resets := func(a, _ conn) error { return errors.Join(a.SetLinger(0), a.Close()) }
	return map[string][]func(a, b conn) error{
		"CloseWrite by both":            {closeWrite, closeWrite, write, peer(read), peer(closeWrite), read, closeWrite, closeRead},
		"the deadline comes first":      {closeWrite, past, write},
		"the deadline, if the peer":     {peer(closes), read, past, write, closes, write},
		"Write after the peer's Close":  {peer(closes), read, write, write, write, read},
		"CloseWrite after it":           {peer(closes), read, closeWrite, closeWrite},
		"the peer's CloseWrite":         {peer(closeWrite), read, write, closeWrite, peer(read), peer(read), closeWrite, peer(closeWrite)},
		"CloseWrite, then peer's Close": {closeWrite, peer(read), peer(closes), read, closeWrite, write},
		"the peer's reset":              {peer(resets), read, closeWrite, closeRead},
		"after Close":                   {closes, closes, closeWrite, closeRead, write, read},
	}
}()

// testEndsAsTCP: calls on a conn that ends return what they return on TCP.
func testEndsAsTCP(t *testing.T, pipe pipeFunc) {
	for name, calls := range endings {
		t.Run(name, func(t *testing.T) {
			ta, tb := tcpPipe(t)
			a, b := pipe()
			defer func() {
				for _, c := range []conn{ta, tb, a, b} {
					_ = c.Close()
				}
			}()
			for i, call := range calls {
				require.Equal(t, sentinel(call(ta, tb)), sentinel(call(a, b)), "call %d", i)
				time.Sleep(time.Millisecond) // TCP's answers come without a call to wait for them
			}
		})
	}
}

// sentinel returns the text of the first of these errors that err is.
func sentinel(err error) string {
	for _, s := range []error{net.ErrClosed, os.ErrDeadlineExceeded, io.EOF, syscall.EPIPE, syscall.ECONNRESET, syscall.ENOTCONN} {
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
