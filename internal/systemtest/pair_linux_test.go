//go:build linux && cgo

package systemtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

const (
	// manyListeners and manyWithin are more listeners than a process may have peers over
	// shared memory, if each of them takes one, or two within one process.
	manyListeners = rdmanet.DefaultMaxShmPeers + 1
	manyWithin    = rdmanet.DefaultMaxShmPeers/2 + 1
	// pairSize is for data of both kinds, in bytes.
	pairSize = 300_000
)

func init() { rdmatest.Roles["many listeners"] = manyListen }

// manyListen listens at as many addresses as count says, prints them, and obeys orders on all
// conns until its standard input ends.
func manyListen(provider, count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var failed []error
	for range n {
		lc := rdmanet.ListenConfig{Providers: []string{provider}}
		l, err := lc.Listen(context.Background(), "rdma", testenv.Address())
		if err != nil {
			return err
		}
		fmt.Println(l.Addr())
		go rdmatest.Serve(l, func(c net.Conn) {
			err := rdmatest.Obey(c.(*rdmanet.Conn))
			mu.Lock()
			defer mu.Unlock()
			failed = append(failed, err)
		})
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	mu.Lock()
	defer mu.Unlock()
	return errors.Join(append(failed, err)...)
}

// TestManyListeners: a pair of processes has one control connection, and over shared memory one
// pair of endpoints, however many listeners of the one process the other dials.
func TestManyListeners(t *testing.T) {
	for _, provider := range testenv.Providers() {
		for name, dial := range map[string]func(t *testing.T, n int, dial func(i int)){
			"one after the other": func(_ *testing.T, n int, dial func(i int)) {
				for i := range n {
					dial(i)
				}
			},
			"at once": func(_ *testing.T, n int, dial func(i int)) {
				var wg sync.WaitGroup
				for i := range n {
					wg.Go(func() { dial(i) })
				}
				wg.Wait()
			},
		} {
			t.Run(provider+", "+name, func(t *testing.T) {
				tr := new(rdmanet.Transport)
				rdmatest.Cleanly(t, tr)
				cmd := rdmatest.Process(t, "many listeners", provider, strconv.Itoa(manyListeners))
				stdin, stdout := rdmatest.Start(t, cmd)
				addrs := make([]string, manyListeners)
				for i := range addrs {
					addrs[i] = rdmatest.Line(t, stdout)
				}
				d := &rdmanet.Dialer{Transport: tr, Providers: []string{provider}, Timeout: rdmatest.Patience}
				conns := make([]*rdmanet.Conn, len(addrs))
				dial(t, len(addrs), func(i int) {
					c, err := d.Dial("rdma", addrs[i])
					if assert.NoError(t, err) {
						conns[i] = c.(*rdmanet.Conn)
					}
				})
				if t.Failed() {
					return
				}
				s := tr.Stats()
				if name == "at once" { // two that begin at the same moment do not know of each other
					assert.LessOrEqual(t, s.Peers, 2)
				} else {
					assert.Equal(t, 1, s.Peers)
				}
				assert.Equal(t, s.Peers, s.Providers[provider].Peers)
				exchangeAll(t, conns)
				require.NoError(t, stdin.Close())
				require.NoError(t, cmd.Wait(), "the other process")
			})
		}
	}
}

// exchangeAll has data exchanged on all conns, at the same time, with the processes at their
// other ends.
func exchangeAll(t *testing.T, conns []*rdmanet.Conn) {
	t.Helper()
	var wg sync.WaitGroup
	for i, c := range conns {
		wg.Go(func() {
			o := rdmatest.Order{Duty: rdmatest.Exchange, Key: uint64(2 * i), Size: pairSize}
			_, err := c.Write(o.Encode())
			assert.NoError(t, err)
			assert.NoError(t, o.CarryOut(c, o.Key+1, rdmatest.Patience))
		})
	}
	wg.Wait()
}

// TestManyListenersWithin is the same within one process.
func TestManyListenersWithin(t *testing.T) {
	rdmatest.Over(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		d := &rdmanet.Dialer{Transport: tr, Providers: providers, Timeout: rdmatest.Patience}
		var conns []*rdmanet.Conn
		var served sync.WaitGroup
		for range manyWithin {
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: providers})
			c, s := rdmatest.Meet(t, d, l)
			assert.Equal(t, l.Addr().String(), c.RemoteAddr().String())
			assert.Equal(t, l.Addr().String(), s.LocalAddr().String())
			served.Go(func() { assert.NoError(t, rdmatest.Obey(s)) })
			conns = append(conns, c)
		}
		assert.Equal(t, 2, tr.Stats().Peers, "the two sides of one control connection")
		exchangeAll(t, conns)
		served.Wait()
	})
}
