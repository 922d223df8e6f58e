//go:build linux && cgo

package systemtest

import (
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
)

// eavesdrop relays one control connection to addr from the address that it returns. heard returns the
// name of the endpoint with which the dialing side attaches, once it has.
func eavesdrop(t *testing.T, addr string) (via string, heard func() []byte) {
	t.Helper()
	ln, err := net.Listen("tcp", testenv.Address())
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	var name []byte
	failed := make(chan error, 1)
	go func() {
		in, err := ln.Accept()
		if err != nil {
			failed <- err
			return
		}
		defer in.Close()
		out, err := net.Dial("tcp", addr)
		if err != nil {
			failed <- err
			return
		}
		go func() {
			defer out.Close()
			_, _ = io.Copy(in, out)
			in.Close()
		}()
		name, err = attachedName(io.TeeReader(in, out))
		failed <- err
		_, _ = io.Copy(out, in)
		out.Close()
	}()
	return ln.Addr().String(), func() []byte {
		t.Helper()
		require.NoError(t, <-failed)
		return name
	}
}

// attachedName reads what a dialing side says, up to its Attach, and returns the endpoint's name in that.
func attachedName(r io.Reader) ([]byte, error) {
	if _, err := io.ReadFull(r, make([]byte, framing.PreambleSize)); err != nil {
		return nil, err
	}
	for {
		length := make([]byte, framing.LengthSize)
		if _, err := io.ReadFull(r, length); err != nil {
			return nil, err
		}
		n, err := framing.DecodeLength(length)
		if err != nil {
			return nil, err
		}
		message := make([]byte, n)
		if _, err := io.ReadFull(r, message); err != nil {
			return nil, err
		}
		var attach framing.Attach
		switch kind, body, err := framing.SplitMessage(message); {
		case err != nil:
			return nil, err
		case kind == framing.KindAttach:
			err := framing.DecodeBody(body, &attach)
			return attach.Name, err
		}
	}
}
