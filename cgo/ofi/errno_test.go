package ofi_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
)

func TestErrno(t *testing.T) {
	for _, test := range []struct {
		err   error
		match error
		text  string
	}{
		{ofi.Errno(syscall.ECONNRESET), syscall.ECONNRESET, "connection reset by peer"},
		{ofi.Errno(syscall.EACCES), os.ErrPermission, "permission denied"},
		{ofi.ErrTruncate, syscall.EMSGSIZE, "message truncated"},
		{ofi.Errno(999), ofi.Errno(999), "libfabric error 999"},
		{&ofi.CallError{Call: "fi_send", Errno: ofi.ErrNoKey}, ofi.ErrNoKey, "fi_send: memory key"},
		{&ofi.CompletionError{Errno: ofi.Errno(syscall.EIO), Provider: 12}, syscall.EIO, "(provider error 12)"},
	} {
		assert.ErrorIs(t, test.err, test.match)
		assert.ErrorContains(t, test.err, test.text)
	}
	assert.NotErrorIs(t, ofi.ErrTruncate, syscall.EIO)
	assert.NotErrorIs(t, ofi.Errno(999), syscall.Errno(0))
}
