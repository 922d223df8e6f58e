package rdmanet_test

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// halfCloser is what TCP connections and conns have in common.
type halfCloser interface {
	net.Conn
	CloseRead() error
	CloseWrite() error
	SetLinger(sec int) error
	SetNoDelay(on bool) error
}

// shape takes an error apart in the ways in which programs do.
func shape(err error) string {
	if err == nil || err == io.EOF {
		return map[bool]string{true: "nil", false: "EOF"}[err == nil]
	}
	oe, ok := err.(*net.OpError) //nolint:errorlint // as those programs do
	if !ok {
		return "no *net.OpError"
	}
	said := oe.Op
	if oe.Timeout() {
		said += " timeout"
	}
	if se, ok := oe.Err.(*os.SyscallError); ok { //nolint:errorlint // as those programs do
		errno, ok := se.Err.(syscall.Errno) //nolint:errorlint // as those programs do
		if !ok {
			return said + ": no errno within " + se.Syscall
		}
		said += ": " + se.Syscall + ": " + errno.Error()
	}
	_, text, _ := strings.Cut(err.Error(), oe.Addr.String()+": ")
	return said + ", text " + text
}

// TestErrorsAsTCP: the errors of each call have the shape of package net's, by type assertion and
// in their text behind the addresses.
func TestErrorsAsTCP(t *testing.T) {
	past := time.Unix(1, 0)
	read := func(c halfCloser) error { _, err := c.Read(make([]byte, 1)); return err }
	write := func(c halfCloser) error { _, err := c.Write([]byte("x")); return err }
	// untilErr calls f until it fails: over TCP the first Write after the peer's end passes.
	untilErr := func(f func(halfCloser) error) func(halfCloser) error {
		return func(c halfCloser) (err error) {
			rdmatest.Eventually(t, func() bool { err = f(c); return err != nil }, "it fails")
			return err
		}
	}
	reset := func(_, peer halfCloser) error {
		return errors.Join(peer.SetLinger(0), peer.Close())
	}
	for name, tt := range map[string]struct {
		before func(c, peer halfCloser) error
		call   func(c halfCloser) error
	}{
		"read after a reset":  {reset, read},
		"write after a reset": {reset, untilErr(write)},
		"write after a close": {func(c, peer halfCloser) error {
			err := peer.Close()
			_ = read(c)
			return err
		}, untilErr(write)},
		"write after CloseWrite": {func(c, _ halfCloser) error { return c.CloseWrite() }, write},
		"read at the end":        {func(_, peer halfCloser) error { return peer.CloseWrite() }, read},
		"read after CloseRead":   {func(c, _ halfCloser) error { return c.CloseRead() }, read},
		"read deadline":          {func(c, _ halfCloser) error { return c.SetReadDeadline(past) }, read},
		"write deadline":         {func(c, _ halfCloser) error { return c.SetWriteDeadline(past) }, write},
		"read after Close":       {func(c, _ halfCloser) error { return c.Close() }, read},
		"write after Close":      {func(c, _ halfCloser) error { return c.Close() }, write},
		"second Close":           {func(c, _ halfCloser) error { return c.Close() }, halfCloser.Close},
		"CloseRead after Close":  {func(c, _ halfCloser) error { return c.Close() }, halfCloser.CloseRead},
		"CloseWrite after Close": {func(c, _ halfCloser) error { return c.Close() }, halfCloser.CloseWrite},
		"deadline after Close":   {func(c, _ halfCloser) error { return c.Close() }, func(c halfCloser) error { return c.SetDeadline(past) }},
		"linger after Close":     {func(c, _ halfCloser) error { return c.Close() }, func(c halfCloser) error { return c.SetLinger(1) }},
	} {
		t.Run(name, func(t *testing.T) {
			tr := simulated(t, simfabric.TCP())
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
			a, b := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr}, l)
			tcpListener, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer tcpListener.Close()
			ta, err := net.Dial("tcp", tcpListener.Addr().String())
			require.NoError(t, err)
			tb, err := tcpListener.Accept()
			require.NoError(t, err)
			var said [2]string
			for i, pair := range [2][2]halfCloser{{ta.(halfCloser), tb.(halfCloser)}, {a, b}} {
				done := make(chan error, 1)
				go func() { done <- tt.before(pair[0], pair[1]) }() // Close may wait for the peer
				require.NoError(t, <-done)
				said[i] = shape(tt.call(pair[0]))
			}
			assert.Equal(t, said[0], said[1])
			for _, c := range []halfCloser{ta.(halfCloser), tb.(halfCloser), a, b} {
				_ = c.SetLinger(0)
				_ = c.Close()
			}
		})
	}
}

// TestRefusedAsTCP: a refused dial has package net's shape, whether nobody listens or the backlog is full.
func TestRefusedAsTCP(t *testing.T) {
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, nobody.Close())
	_, err = net.Dial("tcp", nobody.Addr().String())
	want := shape(err)
	assert.Contains(t, want, "dial: connect: connection refused")
	onEach(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: providers, Backlog: 1})
		d := &rdmanet.Dialer{Transport: tr, Providers: providers}
		_, err := d.Dial("rdma", nobody.Addr().String())
		assert.Equal(t, want, shape(err))
		c, err := d.Dial("rdma", l.Addr().String())
		require.NoError(t, err)
		_, err = d.Dial("rdma", l.Addr().String())
		assert.Equal(t, want, shape(err), "the backlog is full")
		rdmatest.CloseAll(t, c, rdmatest.Accept(t, l))
	})
}

// TestLostPeerAsTCP: the error says that the conn was reset, as TCP's does, and Info says why.
func TestLostPeerAsTCP(t *testing.T) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.TCP()})
	here, there := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
	rdmatest.Cleanly(t, here, there)
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
	c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: here}, l)
	assert.NoError(t, c.Info().Lost)
	require.NoError(t, there.Close())
	_, err := c.Read(make([]byte, 1))
	assert.Equal(t, "read: read: connection reset by peer, text read: connection reset by peer", shape(err))
	assert.ErrorContains(t, c.Info().Lost, "goodbye")
	_ = c.Close()
	assert.ErrorContains(t, c.Info().Lost, "goodbye", "after Close, too")
	_ = s.Close()
}
