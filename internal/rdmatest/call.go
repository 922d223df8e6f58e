package rdmatest

import (
	"errors"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// Prompt is how soon every call must return after something was closed.
const Prompt = 2 * time.Second

// Call is a call that is expected to block until something is closed.
type Call struct {
	done chan struct{}
	n    int
	Err  error // once it is done
}

// Begin makes a call.
func Begin(f func() (int, error)) *Call {
	c := &Call{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.n, c.Err = f()
	}()
	return c
}

// End waits for the call, which must return within Prompt, and with one of errs if any
// are given.
func (c *Call) End(t *testing.T, name string, errs ...error) int {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(Prompt):
		require.FailNow(t, name+" does not return")
	}
	Expect(t, name, c.Err, errs...)
	return c.n
}

// Expect checks an error, which may be any of errs: io.EOF as it is, and all others as a
// *net.OpError.
func Expect(t *testing.T, name string, err error, errs ...error) {
	t.Helper()
	ok := len(errs) == 0
	for _, want := range errs {
		ok = ok || errors.Is(err, want)
	}
	require.True(t, ok, "%s: %v is none of %v", name, err, errs)
	var op *net.OpError
	require.True(t, err == nil || err == io.EOF || errors.As(err, &op), "%s: %v is no *net.OpError", name, err)
}

// Read begins a Read.
func Read(c *rdmanet.Conn) *Call {
	return Begin(func() (int, error) { return c.Read(make([]byte, 100)) })
}

// Write begins a Write.
func Write(c *rdmanet.Conn, data []byte) *Call {
	return Begin(func() (int, error) { return c.Write(data) })
}

// Shut begins a Close.
func Shut(c io.Closer) *Call {
	return Begin(func() (int, error) { return 0, c.Close() })
}

// Wait waits for the call, and returns its error.
func (c *Call) Wait() error {
	select {
	case <-c.done:
		return c.Err
	case <-time.After(Prompt):
		return errors.New("does not return")
	}
}

// Stacks returns what all goroutines are doing.
func Stacks() string {
	b := make([]byte, 1<<20)
	return string(b[:runtime.Stack(b, true)])
}
