package rdmanet_test

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// prompt is how soon every call must return after something was closed.
const prompt = 2 * time.Second

// call is a call that is expected to block until something is closed.
type call struct {
	done chan struct{}
	n    int
	err  error
}

func begin(f func() (int, error)) *call {
	c := &call{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.n, c.err = f()
	}()
	return c
}

// end waits for the call, which must return within prompt, and with one of errs if any
// are given.
func (c *call) end(t *testing.T, name string, errs ...error) int {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(prompt):
		require.FailNow(t, name+" does not return")
	}
	expect(t, name, c.err, errs...)
	return c.n
}

// expect checks an error, which may be any of errs: io.EOF as it is, and all others as a
// *net.OpError.
func expect(t *testing.T, name string, err error, errs ...error) {
	t.Helper()
	ok := len(errs) == 0
	for _, want := range errs {
		ok = ok || errors.Is(err, want)
	}
	require.True(t, ok, "%s: %v is none of %v", name, err, errs)
	var op *net.OpError
	require.True(t, err == nil || err == io.EOF || errors.As(err, &op), "%s: %v is no *net.OpError", name, err)
}

func read(c *rdmanet.Conn) *call {
	return begin(func() (int, error) { return c.Read(make([]byte, 100)) })
}

func write(c *rdmanet.Conn, data []byte) *call {
	return begin(func() (int, error) { return c.Write(data) })
}

func shut(c io.Closer) *call {
	return begin(func() (int, error) { return 0, c.Close() })
}

func (c *call) wait() error {
	select {
	case <-c.done:
		return c.err
	case <-time.After(prompt):
		return errors.New("does not return")
	}
}
