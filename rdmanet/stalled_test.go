package rdmanet_test

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

const connsVar = "RDMANET_TEST_CONNS"

func init() {
	roles["clients"] = dialForOrders
}

// dialForOrders dials as many conns as it is told to, and does on each what the listening
// side says.
func dialForOrders(provider, addr string) error {
	return dialAndObey(provider, addr, func() error { return nil })
}

// dialAndObey is dialForOrders, but calls between once all conns are dialed.
func dialAndObey(provider, addr string, between func() error) error {
	n, err := strconv.Atoi(os.Getenv(connsVar))
	if err != nil {
		return err
	}
	d := rdmanet.Dialer{Providers: []string{provider}, Timeout: patience}
	var conns []*rdmanet.Conn
	for range n {
		c, err := d.Dial("rdma", addr)
		if err != nil {
			return err
		}
		conns = append(conns, c.(*rdmanet.Conn))
	}
	if err := between(); err != nil {
		return err
	}
	var wg sync.WaitGroup
	failed := make([]error, n)
	for i, c := range conns {
		wg.Go(func() { failed[i] = obey(c) })
	}
	wg.Wait()
	return errors.Join(failed...)
}

// clients starts another process, which dials, and returns n accepted conns of it.
func clients(t *testing.T, tr *rdmanet.Transport, provider string, n int) (list []*rdmanet.Conn, cmd *exec.Cmd) {
	t.Helper()
	l := listen(t, rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}, Backlog: n})
	cmd = process(t, "clients", provider, l.Addr().String())
	cmd.Env = append(cmd.Env, "GORACE=atexit_sleep_ms=100", connsVar+"="+strconv.Itoa(n))
	require.NoError(t, cmd.Start())
	for range n {
		list = append(list, accept(t, l))
	}
	return list, cmd
}

// TestStalledProcess: a process that is suspended while a hundred conns are written to
// leaves the others on the endpoint enough to work with. Over shared memory, nobody shares
// an endpoint with it.
func TestStalledProcess(t *testing.T) {
	for _, provider := range testenv.Shared() {
		t.Run(provider, func(t *testing.T) {
			tr := new(rdmanet.Transport)
			defer func() { assert.NoError(t, tr.Close()) }()
			others, cmd := clients(t, tr, provider, 5)
			instruct(t, others[0], order{duty: answer})
			var l load
			for _, c := range others[1:] {
				instruct(t, c, order{duty: sink})
				l.add(t, c, 64<<10)
			}
			compare(t, rounds(3, 15), 0.5, l.rate, func() float64 {
				defer stall(t, tr, provider)()
				for range 10 {
					if !answers(t, others[0]) {
						t.FailNow()
					}
				}
				return l.rate()
			})
			l.stop(t)
			closeAll(t, others[0])
			assert.NoError(t, cmd.Wait())
		})
	}
}

// stall suspends another process, and writes as much to it as goes.
func stall(t *testing.T, tr *rdmanet.Transport, provider string) (end func()) {
	t.Helper()
	conns, cmd := clients(t, tr, provider, 100)
	for _, c := range conns {
		instruct(t, c, order{duty: sink})
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	var writers, full sync.WaitGroup
	for i, c := range conns {
		writers.Go(func() {
			for {
				if _, err := c.Write(noise()[:500+i%2*(64<<10)]); err != nil {
					return
				}
			}
		})
		full.Go(func() { standstill(c, 50*time.Millisecond, nil) })
	}
	full.Wait()
	return func() {
		assert.NoError(t, cmd.Process.Kill())
		writers.Wait()
		assert.Error(t, cmd.Wait())
		for _, c := range conns {
			assert.NoError(t, c.SetLinger(0))
			_ = c.Close()
		}
	}
}

func instruct(t *testing.T, c *rdmanet.Conn, o order) {
	t.Helper()
	_, err := c.Write(o.encode())
	require.NoError(t, err)
}

// answers reports whether a conn's other side answers in time.
func answers(t *testing.T, c *rdmanet.Conn) bool {
	t.Helper()
	buf := make([]byte, 64)
	require.NoError(t, c.SetDeadline(time.Now().Add(5*time.Second)))
	_, err := c.Write(buf)
	if err == nil {
		_, err = io.ReadFull(c, buf)
	}
	return assert.NoError(t, err) && assert.NoError(t, c.SetDeadline(time.Time{}))
}
