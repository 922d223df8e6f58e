package rdmanet_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func init() { rdmatest.Roles["idle conns"] = idleConns }

// idleConns says how much processor time a hundred conns took in idleFor.
func idleConns(provider, _ string) error {
	lc := rdmanet.ListenConfig{Providers: []string{provider}}
	l, err := lc.Listen(context.Background(), "rdma", testenv.Address())
	if err != nil {
		return err
	}
	defer l.Close()
	var conns []net.Conn // what is dropped is closed
	var reads sync.WaitGroup
	var unasked atomic.Int32 // Reads that did not end by Close
	d := rdmanet.Dialer{Providers: []string{provider}, Timeout: rdmatest.Patience}
	for range 100 {
		client, err := d.Dial("rdma", l.Addr().String())
		if err != nil {
			return err
		}
		server, err := l.Accept()
		if err != nil {
			return err
		}
		for _, c := range []net.Conn{client, server} {
			if _, err := c.Write([]byte{1}); err != nil {
				return err
			}
		}
		for _, c := range []net.Conn{client, server} {
			b := make([]byte, 1)
			if _, err := c.Read(b); err != nil {
				return err
			}
			reads.Go(func() {
				if _, err := c.Read(b); err == nil {
					unasked.Add(1)
				}
			})
			conns = append(conns, c)
		}
	}
	time.Sleep(idleFor) // until leases are taken back and everything has parked
	start, err := cpuTime()
	if err != nil {
		return err
	}
	time.Sleep(idleFor)
	end, err := cpuTime()
	if err != nil {
		return err
	}
	fmt.Println(end - start)
	for _, c := range conns {
		err = errors.Join(err, c.(*rdmanet.Conn).SetLinger(0), c.Close())
	}
	reads.Wait()
	if n := unasked.Load(); n > 0 {
		err = errors.Join(err, fmt.Errorf("%d idle conns got data", n))
	}
	return err
}

const idleFor = 3 * time.Second

// TestIdle: a listener with a hundred idle conns costs next to nothing. They are in
// a process of their own, for the memory that other tests leave costs time for a
// while: the collector goes through it, and Go gives it back to the system.
func TestIdle(t *testing.T) {
	for _, provider := range rdmatest.Providers {
		t.Run(provider, func(t *testing.T) {
			out, err := rdmatest.Process(t, "idle conns", provider, "").Output()
			require.NoError(t, err)
			used, err := time.ParseDuration(strings.TrimSpace(string(out)))
			require.NoError(t, err)
			t.Logf("100 idle conns, both ends in one process: %.3f %% of a core", 100*used.Seconds()/idleFor.Seconds())
			assert.Less(t, used, idleFor/100)
		})
	}
}

func cpuTime() (time.Duration, error) {
	var u syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), err
}
