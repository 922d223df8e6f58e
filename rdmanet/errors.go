package rdmanet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/seed202c38ff/fabricnet/internal/bootstrap"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// Errors that those of Dial and Listen wrap, besides those of package net, of
// the context and of the system.
var (
	// ErrNotRdmanet: the peer speaks another protocol.
	ErrNotRdmanet = bootstrap.ErrNotRdmanet
	// ErrVersion: the two sides have no protocol version in common.
	ErrVersion = bootstrap.ErrVersion
	// ErrNoProvider: there is no provider that works on both sides. The text
	// has a reason for each, what the two sides have besides, and what to do.
	ErrNoProvider = bootstrap.ErrNoProvider
	// ErrUnauthorized: ListenConfig.Authorize did not welcome the dialer.
	ErrUnauthorized = bootstrap.ErrUnauthorized
	// ErrTLSRequired: the listener demands TLS, the dialer has no TLSConfig.
	ErrTLSRequired = bootstrap.ErrTLSRequired
	// ErrTLSMismatch: the dialer asks for TLS, the listener has no TLSConfig.
	ErrTLSMismatch = bootstrap.ErrTLSMismatch
	// ErrTLSHandshake: both sides have a TLSConfig, and do not agree: one of them does not
	// take the other's certificate, say. It wraps crypto/tls's error, which tells.
	ErrTLSHandshake = bootstrap.ErrTLSHandshake
	// ErrMalformed: the peer broke the handshake protocol.
	ErrMalformed = bootstrap.ErrMalformed
	// ErrHandshakeTimeout: the handshake did not end in time. It is an
	// os.ErrDeadlineExceeded, too, and a context.DeadlineExceeded if it was a Dial's own
	// time that is over.
	ErrHandshakeTimeout = bootstrap.ErrHandshakeTimeout
	// ErrProviderUnavailable: this machine does not offer the provider.
	ErrProviderUnavailable = fabric.ErrNoProvider
	// ErrUnsupported: there is no libfabric. It is not installed, or this program was
	// built without its headers, without cgo or for another system than Linux. The text
	// says which package is missing and where was looked.
	ErrUnsupported = fabric.ErrUnsupported
	// ErrMemory: Transport.MemoryLimit has no room, on either side.
	ErrMemory = bootstrap.ErrMemory
	// ErrTooManyPeers: the listener has as many peers as it may have, none of them idle: see
	// ListenConfig.MaxPeers and MaxPeersPerHost.
	ErrTooManyPeers = bootstrap.ErrTooManyPeers
	// ErrTooManyShmPeers: shm is what the two sides share, and one of them has as many peers
	// over it as it may have, none of them idle: see Transport.MaxShmPeers. The text says
	// which side, and what to do: with another provider in Providers of both sides, further
	// peers get that. It is an ErrNoProvider, too.
	ErrTooManyShmPeers = bootstrap.ErrTooManyShmPeers
	// ErrBusy: the listener has more handshakes under way than it can, and this one did not
	// get through in its time. Dial has tried again, for ten seconds.
	ErrBusy = bootstrap.ErrBusy
	// ErrClosing: the listener is being closed.
	ErrClosing = bootstrap.ErrClosing
	// ErrConfig: a field of Dialer, ListenConfig or Transport, or an environment
	// variable, has a value that makes no sense, or contradicts another. The text
	// names it and says what to use. docs/tuning.md has the ranges.
	ErrConfig = errors.New("invalid configuration")
)

// opError is where every error leaves this package: as a *net.OpError, but for
// io.EOF. source and addr may be nil.
func opError(op string, source, addr *Addr, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	network := networkName
	if addr != nil {
		network = addr.network
	}
	out := &net.OpError{Op: op, Net: network, Err: err}
	// An error of package net keeps what it knows, under our name for it.
	if inner, ok := err.(*net.OpError); ok { //nolint:errorlint // only the outermost
		out.Err = inner.Err
		out.Source, out.Addr = renamed(network, inner.Source), renamed(network, inner.Addr)
	}
	// A nil *Addr must not become a net.Addr that is not nil.
	if source != nil {
		out.Source = source
	}
	if addr != nil {
		out.Addr = addr
	}
	out.Err = timeout(out.Err)
	return out
}

// because is what ended a dial from outside, with the addresses of the error that came of
// it. Of a deadline that error knows more: what was being waited for.
func because(cause, err error) error {
	var oe *net.OpError
	if !errors.As(err, &oe) {
		return cause
	}
	out := *oe
	if out.Err = cause; errors.Is(cause, context.DeadlineExceeded) && (errors.Is(err, ErrHandshakeTimeout) || errors.Is(err, ErrBusy)) {
		out.Err = fmt.Errorf("%w (%w)", oe.Err, cause)
	}
	return &out
}

func renamed(network string, a net.Addr) net.Addr {
	switch a := a.(type) {
	case *net.TCPAddr:
		if a != nil {
			return newAddr(network, a)
		}
	case *Addr:
		if a != nil {
			return a
		}
	}
	return nil
}

// timeout makes sure that net.OpError.Timeout, which does not unwrap, is right.
func timeout(err error) error {
	if _, ok := err.(interface{ Timeout() bool }); ok { //nolint:errorlint // as net.OpError looks at it
		return err
	}
	var ne net.Error
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) ||
		errors.As(err, &ne) && ne.Timeout() {
		return timeoutError{err}
	}
	return err
}

// timeoutError says of a wrapped time-out that it is one.
type timeoutError struct{ error }

func (e timeoutError) Timeout() bool   { return true }
func (e timeoutError) Temporary() bool { return true }
func (e timeoutError) Unwrap() error   { return e.error }

// failureReasons names the reasons of failed handshakes and of fallbacks for
// statistics; the first that matches counts.
var failureReasons = []struct {
	err    error
	reason string
}{
	{ErrNotRdmanet, "not rdmanet"},
	{ErrVersion, "version"},
	{ErrMemory, "memory"},
	{ErrTooManyPeers, "too many peers"},
	{ErrTooManyShmPeers, "too many peers over shm"},
	{ErrNoProvider, "no provider"},
	{ErrProviderUnavailable, "no provider"},
	{ErrUnsupported, "unsupported"},
	{ErrUnauthorized, "unauthorized"},
	{ErrTLSRequired, "tls required"},
	{ErrTLSMismatch, "tls mismatch"},
	{ErrMalformed, "malformed"},
	{ErrClosing, "closing"},
	{errTooManyHandshakes, "busy"},
	{ErrBusy, "busy"},
	{context.Canceled, "canceled"},
	{os.ErrDeadlineExceeded, "timeout"},
	{context.DeadlineExceeded, "timeout"},
	{io.ErrUnexpectedEOF, "connection lost"},
	{syscall.ECONNRESET, "connection lost"},
	{syscall.EPIPE, "connection lost"},
	{ErrTLSHandshake, "tls handshake"}, // that has ended for none of those
}

// failureReason is a short name for why a handshake failed.
func failureReason(err error) string {
	for _, f := range failureReasons {
		if errors.Is(err, f.err) {
			return f.reason
		}
	}
	return "other"
}
