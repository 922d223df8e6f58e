package rdmatest

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// ConnsVar is the environment variable that says how many conns another process is to dial.
const ConnsVar = "RDMANET_TEST_CONNS"

// dialForOrders dials as many conns as it is told to, and does on each what the listening
// side says.
func dialForOrders(provider, addr string) error {
	return DialAndObey(provider, addr, func() error { return nil })
}

// DialAndObey is dialForOrders, but calls between once all conns are dialed.
func DialAndObey(provider, addr string, between func() error) error {
	n, err := strconv.Atoi(os.Getenv(ConnsVar))
	if err != nil {
		return err
	}
	d := rdmanet.Dialer{Providers: []string{provider}, Timeout: Patience}
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
		wg.Go(func() { failed[i] = Obey(c) })
	}
	wg.Wait()
	return errors.Join(failed...)
}

// Clients starts another process, which dials, and returns n accepted conns of it.
func Clients(t *testing.T, tr *rdmanet.Transport, provider string, n int) (list []*rdmanet.Conn, cmd *exec.Cmd) {
	t.Helper()
	l := Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}, Backlog: n})
	cmd = Process(t, "clients", provider, l.Addr().String())
	cmd.Env = append(cmd.Env, "GORACE=atexit_sleep_ms=100", ConnsVar+"="+strconv.Itoa(n))
	require.NoError(t, cmd.Start())
	for range n {
		list = append(list, Accept(t, l))
	}
	return list, cmd
}

// Instruct says what the process at the other side of c is to do with it.
func Instruct(t *testing.T, c *rdmanet.Conn, o Order) {
	t.Helper()
	_, err := c.Write(o.Encode())
	require.NoError(t, err)
}

// Answers reports whether a conn's other side answers in time.
func Answers(t *testing.T, c *rdmanet.Conn) bool {
	t.Helper()
	buf := make([]byte, 64)
	require.NoError(t, c.SetDeadline(time.Now().Add(5*time.Second)))
	_, err := c.Write(buf)
	if err == nil {
		_, err = io.ReadFull(c, buf)
	}
	return assert.NoError(t, err) && assert.NoError(t, c.SetDeadline(time.Time{}))
}

// Compare requires that the rate of with is usually no less than least times that of without.
// Since the machine may have other things to do as well, the two are measured right after each
// other, and if the median is not good enough, there are up to two more rounds to improve it.
// That takes a quiet machine and many turns, and hence -soak. The few turns of the short form
// only tell whether the others stand still.
func Compare(t *testing.T, turns int, least float64, without, with func() float64) {
	t.Helper()
	if !*Soak {
		least = 0.1
	}
	var ratios []float64
	for range 3 {
		var a, b float64
		for i := range turns {
			if i%2 == 0 {
				a, b = without(), with()
			} else {
				b = with()
				a = without()
			}
			ratios = append(ratios, b/a)
		}
		slices.Sort(ratios)
		t.Logf("%.2fx of the rate alone, %.2fx to %.2fx; at last %.3g MB/s and %.3g", ratios[len(ratios)/2],
			ratios[0], ratios[len(ratios)-1], b/1e6, a/1e6)
		if ratios[len(ratios)/2] >= least {
			return
		}
	}
	assert.GreaterOrEqual(t, ratios[len(ratios)/2], least)
}
