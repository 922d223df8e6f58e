package rdmanet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOpError(t *testing.T) {
	local := newAddr(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1})
	remote := newAddr(&net.TCPAddr{IP: net.IPv6loopback, Port: 2})
	inner := &net.OpError{
		Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 3},
		Err: os.NewSyscallError("connect", syscall.ECONNREFUSED),
	}
	for name, tt := range map[string]struct {
		source, addr *net.TCPAddr
		err          error
		is           []error
		text         string
		timeout      bool
	}{
		"closed": {local, remote, net.ErrClosed, []error{net.ErrClosed},
			"read rdma 10.0.0.1:1->[::1]:2: use of closed network connection", false},
		"deadline": {local, remote, os.ErrDeadlineExceeded, []error{os.ErrDeadlineExceeded},
			"read rdma 10.0.0.1:1->[::1]:2: i/o timeout", true},
		"wrapped deadline": {nil, remote, fmt.Errorf("because: %w", os.ErrDeadlineExceeded), []error{os.ErrDeadlineExceeded},
			"read rdma [::1]:2: because: i/o timeout", true},
		"context": {nil, nil, context.Canceled, []error{context.Canceled}, "read rdma: context canceled", false},
		"context deadline": {nil, nil, fmt.Errorf("%w: x", context.DeadlineExceeded), []error{context.DeadlineExceeded},
			"read rdma: context deadline exceeded: x", true},
		"handshake": {nil, remote, fmt.Errorf("%w: silence", ErrHandshakeTimeout), []error{ErrHandshakeTimeout, os.ErrDeadlineExceeded},
			"read rdma [::1]:2: handshake timed out: silence", true},
		"reset":  {local, remote, syscall.ECONNRESET, []error{syscall.ECONNRESET}, "read rdma 10.0.0.1:1->[::1]:2: read: connection reset by peer", false},
		"pipe":   {local, remote, syscall.EPIPE, []error{syscall.EPIPE}, "read rdma 10.0.0.1:1->[::1]:2: read: broken pipe", false},
		"memory": {local, nil, fmt.Errorf("%w: x", ErrMemory), []error{ErrMemory}, "", false},
		"of package net": {nil, nil, inner, []error{syscall.ECONNREFUSED},
			"read rdma 10.0.0.2:3: connect: connection refused", false},
		"ours over package net's": {local, remote, inner, []error{syscall.ECONNREFUSED},
			"read rdma 10.0.0.1:1->[::1]:2: connect: connection refused", false},
	} {
		t.Run(name, func(t *testing.T) {
			err := opError("read", tt.source, tt.addr, tt.err)
			var oe *net.OpError
			require.ErrorAs(t, err, &oe)
			assert.Same(t, oe, err, "outermost")
			ne, ok := err.(net.Error)
			require.True(t, ok)
			assert.Equal(t, tt.timeout, ne.Timeout())
			for _, target := range tt.is {
				assert.ErrorIs(t, err, target)
			}
			if tt.text != "" {
				assert.EqualError(t, err, tt.text)
			}
			assert.Equal(t, tt.source == nil && oe.Source == nil, oe.Source == nil, "no nil pointer in an interface")
		})
	}
	assert.NoError(t, opError("read", local, remote, nil))
	assert.Equal(t, io.EOF, opError("read", local, remote, io.EOF), "bare")
}

func TestFailureReason(t *testing.T) {
	for want, err := range map[string]error{
		"not rdmanet":  fmt.Errorf("%w: it sent HTTP", ErrNotRdmanet),
		"no provider":  fmt.Errorf("x: %w", ErrNoProvider),
		"unauthorized": fmt.Errorf("%w: no", ErrUnauthorized),
		"timeout":      ErrHandshakeTimeout,
		"canceled":     &net.OpError{Op: "dial", Err: context.Canceled},
		"other":        errors.New("x"),
	} {
		assert.Equal(t, want, failureReason(err))
	}
}

func TestAddr(t *testing.T) {
	for _, tt := range []struct {
		tcp  *net.TCPAddr
		want string
	}{
		{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80}, "127.0.0.1:80"},
		{&net.TCPAddr{IP: net.IPv6loopback, Port: 80}, "[::1]:80"},
		{&net.TCPAddr{IP: net.ParseIP("fe80::1"), Port: 80, Zone: "eth0"}, "[fe80::1%eth0]:80"},
		{&net.TCPAddr{IP: net.IPv6unspecified, Port: 80}, "[::]:80"},
	} {
		a := newAddr(tt.tcp)
		assert.Equal(t, tt.want, a.String())
		assert.Equal(t, "tcp", a.Network())
		assert.NotSame(t, tt.tcp, a)
		assert.Equal(t, a, newAddr(a))
	}
	for _, a := range []net.Addr{nil, (*net.TCPAddr)(nil), &net.UDPAddr{Port: 1}} {
		assert.Zero(t, addrPort(a))
	}
}

func TestNetworks(t *testing.T) {
	for name, want := range map[string]string{
		"rdma": "tcp", "rdma4": "tcp4", "rdma6": "tcp6", "tcp": "tcp", "tcp4": "tcp4", "tcp6": "tcp6",
	} {
		got, err := tcpNetwork(name)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	_, err := tcpNetwork("udp")
	assert.Equal(t, net.UnknownNetworkError("udp"), err)
}

// TestReasonsDocumented: docs/operations.md lists every reason of a failure.
func TestReasonsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	for _, f := range failureReasons {
		assert.Contains(t, string(doc), "`"+f.reason+"`")
	}
	assert.Contains(t, string(doc), "`"+failureReason(errors.New("test"))+"`")
}

func TestBecause(t *testing.T) {
	local := newAddr(&net.TCPAddr{IP: net.IPv6loopback, Port: 1})
	remote := newAddr(&net.TCPAddr{IP: net.IPv6loopback, Port: 2})
	at := func(err error) error {
		return &net.OpError{Op: "dial", Net: networkName, Source: local, Addr: remote, Err: err}
	}
	late := fmt.Errorf("%w: silence", ErrHandshakeTimeout)
	for _, tt := range []struct {
		cause, err error
		text       string
		is, isNot  error
	}{
		{context.DeadlineExceeded, errors.New("x"), "context deadline exceeded", context.DeadlineExceeded, context.Canceled},
		{context.DeadlineExceeded, at(late), "dial rdma [::1]:1->[::1]:2: handshake timed out: silence (context deadline exceeded)", ErrHandshakeTimeout, context.Canceled},
		{context.DeadlineExceeded, at(late), "", context.DeadlineExceeded, context.Canceled},
		{context.DeadlineExceeded, at(syscall.ECONNRESET), "dial rdma [::1]:1->[::1]:2: context deadline exceeded", context.DeadlineExceeded, syscall.ECONNRESET},
		{context.Canceled, at(late), "dial rdma [::1]:1->[::1]:2: context canceled", context.Canceled, os.ErrDeadlineExceeded},
		{net.ErrClosed, at(late), "dial rdma [::1]:1->[::1]:2: use of closed network connection", net.ErrClosed, os.ErrDeadlineExceeded},
	} {
		err := because(tt.cause, tt.err)
		if tt.text != "" {
			assert.EqualError(t, err, tt.text)
		}
		assert.ErrorIs(t, err, tt.is)
		assert.NotErrorIs(t, err, tt.isNot)
	}
}
