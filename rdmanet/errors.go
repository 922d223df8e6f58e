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

// Errors that errors.Is finds in those of Dial and Listen, besides errors of package net, of
// the context and of the system.
var (
	// ErrNotRdmanet means that the peer speaks another protocol.
	ErrNotRdmanet = bootstrap.ErrNotRdmanet
	// ErrVersion means that the two sides speak different versions of the protocol.
	ErrVersion = bootstrap.ErrVersion
	// ErrNoProvider means that no provider works on both sides. The text has a reason for
	// each, what else the two sides have, and what to do.
	ErrNoProvider = bootstrap.ErrNoProvider
	// ErrUnauthorized means that ListenConfig.Authorize refused the dialer.
	ErrUnauthorized = bootstrap.ErrUnauthorized
	// ErrTLSRequired means that the listener demands TLS and the dialer has no TLSConfig.
	ErrTLSRequired = bootstrap.ErrTLSRequired
	// ErrTLSMismatch means that the dialer asks for TLS and the listener has no TLSConfig.
	ErrTLSMismatch = bootstrap.ErrTLSMismatch
	// ErrTLSHandshake means that both sides have a TLSConfig and do not agree: for example,
	// one does not accept the other's certificate. crypto/tls's error, which says why, is
	// wrapped beside it.
	ErrTLSHandshake = bootstrap.ErrTLSHandshake
	// ErrMalformed means that the peer broke the handshake protocol.
	ErrMalformed = bootstrap.ErrMalformed
	// ErrHandshakeTimeout means that the handshake did not end in time. errors.Is finds
	// os.ErrDeadlineExceeded, too, and context.DeadlineExceeded if it was the Dial's own time
	// that was over.
	ErrHandshakeTimeout = bootstrap.ErrHandshakeTimeout
	// ErrProviderUnavailable means that this machine does not offer the provider.
	ErrProviderUnavailable = fabric.ErrNoProvider
	// ErrUnsupported means that there is no libfabric: it is not installed, or this program
	// was built without its headers, without cgo, statically or for a system other than Linux. The text
	// says which package is missing and where it was looked for. It is an errors.ErrUnsupported.
	ErrUnsupported = fabric.ErrUnsupported
	// ErrMemory means that Transport.MemoryLimit has no room, on either side.
	ErrMemory = bootstrap.ErrMemory
	// ErrTooManyPeers means that the listener has as many peers as it may have, none of them
	// idle: see ListenConfig.MaxPeers and MaxPeersPerHost.
	ErrTooManyPeers = bootstrap.ErrTooManyPeers
	// ErrTooManyShmPeers means that shm is what the two sides share, and that one of them has
	// as many peers over it as it may have, none of them idle: see Transport.MaxShmPeers. The
	// text says which side, and what to do: if both sides have another provider in Providers,
	// further peers get that one. errors.Is finds ErrNoProvider, too.
	ErrTooManyShmPeers = bootstrap.ErrTooManyShmPeers
	// ErrBusy means that the listener has more handshakes under way than it can take, and that
	// this one did not get through in its time. Dial has already tried again, for ten seconds.
	ErrBusy = bootstrap.ErrBusy
	// ErrClosing means that the listener is being closed.
	ErrClosing = bootstrap.ErrClosing
	// ErrConfig means that a field of Dialer, ListenConfig or Transport, or an environment
	// variable, has an invalid value or contradicts another one. The text names it and says
	// what to use instead. docs/tuning.md has the ranges.
	ErrConfig = errors.New("invalid configuration")
)

// opError is how the errors of dials, listeners and conns leave this package: as *net.OpError,
// except io.EOF. source and addr may be nil.
func opError(op string, source, addr *net.TCPAddr, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	out := &net.OpError{Op: op, Net: networkName, Err: err}
	// An error of package net keeps its addresses.
	if inner, ok := err.(*net.OpError); ok { //nolint:errorlint // only the outermost
		out.Source, out.Addr, out.Err = inner.Source, inner.Addr, inner.Err
	}
	// A nil *net.TCPAddr must not become a net.Addr that is not nil.
	if source != nil {
		out.Source = source
	}
	if addr != nil {
		out.Addr = addr
	}
	out.Err = timeout(out.Err)
	if errno, ok := out.Err.(syscall.Errno); ok { //nolint:errorlint // as package net does
		out.Err = os.NewSyscallError(systemCalls[op], errno)
	}
	return out
}

// systemCalls are the system calls whose errnos package net reports for its operations. Programs
// look for *os.SyscallError, and for an errno right within.
var systemCalls = map[string]string{
	"dial": "connect", "listen": "listen", "accept": "accept", "read": "read", "write": "write", "close": "close", "set": "setsockopt",
}

// inCall is os.NewSyscallError for an error that may wrap an errno and say more than that.
func inCall(call string, err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err
	}
	return os.NewSyscallError(call, err)
}

// because returns cause, which ended a dial from outside, with the addresses of err, which came
// of it. If cause is a deadline, err may know more, and is kept: what was being waited for.
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

// timeoutError marks a wrapped time-out as one.
type timeoutError struct{ error }

func (e timeoutError) Timeout() bool   { return true }
func (e timeoutError) Temporary() bool { return true }
func (e timeoutError) Unwrap() error   { return e.error }

// Reasons by which TransportStats.HandshakeFailures and Fallbacks count, which are also values of
// the label "reason" of their metrics.
const (
	FailureNotRdmanet      = "not rdmanet"             // the other side speaks something else, or ends before it has said anything
	FailureVersion         = "version"                 // different versions of the protocol
	FailureMemory          = "memory"                  // the memory budget is used up
	FailureTooManyPeers    = "too many peers"          // MaxPeers, MaxPeersPerHost, or no endpoint with room
	FailureTooManyShmPeers = "too many peers over shm" // MaxShmPeers
	FailureNoProvider      = "no provider"             // no provider that works on both sides, or none here
	FailureUnsupported     = "unsupported"             // no libfabric, or no cgo
	FailureUnauthorized    = "unauthorized"            // Authorize has refused
	FailureTLSRequired     = "tls required"            // the listener has TLS, the dialer has none
	FailureTLSMismatch     = "tls mismatch"            // the other way round
	FailureTLSHandshake    = "tls handshake"           // TLS has failed, for none of the other reasons
	FailureMalformed       = "malformed"               // the peer broke the protocol
	FailureClosing         = "closing"                 // the listener, or its Transport, was being closed
	FailureBusy            = "busy"                    // too many handshakes at a time
	FailureCanceled        = "canceled"                // the dial's context was
	FailureTimeout         = "timeout"                 // a time-out or deadline passed
	FailureConnectionLost  = "connection lost"         // the control connection ended early
	FailureOther           = "other"                   // anything else
)

// failureReasons names the reasons of failed handshakes and of fallbacks, for statistics. The
// first one that matches counts.
var failureReasons = []struct {
	err    error
	reason string
}{
	{ErrNotRdmanet, FailureNotRdmanet},
	{ErrVersion, FailureVersion},
	{ErrMemory, FailureMemory},
	{ErrTooManyPeers, FailureTooManyPeers},
	{ErrTooManyShmPeers, FailureTooManyShmPeers},
	{ErrNoProvider, FailureNoProvider},
	{ErrProviderUnavailable, FailureNoProvider},
	{ErrUnsupported, FailureUnsupported},
	{ErrUnauthorized, FailureUnauthorized},
	{ErrTLSRequired, FailureTLSRequired},
	{ErrTLSMismatch, FailureTLSMismatch},
	{ErrMalformed, FailureMalformed},
	{ErrClosing, FailureClosing},
	{errTooManyHandshakes, FailureBusy},
	{ErrBusy, FailureBusy},
	{context.Canceled, FailureCanceled},
	{os.ErrDeadlineExceeded, FailureTimeout},
	{context.DeadlineExceeded, FailureTimeout},
	{io.ErrUnexpectedEOF, FailureConnectionLost},
	{syscall.ECONNRESET, FailureConnectionLost},
	{syscall.EPIPE, FailureConnectionLost},
	{ErrTLSHandshake, FailureTLSHandshake}, // that has ended for none of the reasons above
}

// failureReason returns a short name for why a handshake failed.
func failureReason(err error) string {
	for _, f := range failureReasons {
		if errors.Is(err, f.err) {
			return f.reason
		}
	}
	return FailureOther
}
