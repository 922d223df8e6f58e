//go:build linux && cgo && hosts

package systemtest

import (
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// onThread runs f on a thread that is in the far host's network namespace, and ends the thread.
func (h *farHost) onThread(f func()) {
	h.t.Helper()
	ns, err := os.Open(h.namespace())
	require.NoError(h.t, err)
	defer ns.Close()
	var moved error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if moved = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); moved == nil {
			f()
		}
	}()
	<-done
	require.NoError(h.t, moved)
}

// TestHostsThreads: a program with threads in two network namespaces listens at the same address in
// both. Whatever it dials is in the namespace of the dialing thread, by address and by name, also when
// a peer of the other namespace with that address is known already.
func TestHostsThreads(t *testing.T) {
	h := otherHost(t)
	tr := new(rdmanet.Transport)
	rdmatest.Cleanly(t, tr)
	lc := rdmanet.ListenConfig{Transport: tr, Providers: []string{"shm"}}
	near := rdmatest.Listen(t, lc)
	_, port, err := net.SplitHostPort(near.Addr().String())
	require.NoError(t, err)
	var far *rdmanet.Listener
	h.onThread(func() {
		l, err := lc.Listen(t.Context(), "rdma", near.Addr().String())
		if assert.NoError(t, err, "the port is free there") {
			far = l.(*rdmanet.Listener)
		}
	})
	require.NotNil(t, far)
	defer far.Close()
	visit := func(network string, l *rdmanet.Listener, host string, reused bool) {
		d := &rdmanet.Dialer{Transport: tr, Providers: []string{"shm"}, Timeout: rdmatest.Patience}
		c, err := d.Dial(network, net.JoinHostPort(host, port))
		if !assert.NoError(t, err) {
			return
		}
		_ = l.SetDeadline(time.Now().Add(rdmatest.Patience))
		s, err := l.Accept()
		if !assert.NoError(t, err) {
			return
		}
		assert.Equal(t, reused, c.(*rdmanet.Conn).Info().Reused)
		_ = s.SetDeadline(time.Now().Add(rdmatest.Patience))
		_, err = c.Write([]byte("hello"))
		assert.NoError(t, err)
		buf := make([]byte, 5)
		_, err = s.Read(buf)
		assert.NoError(t, err)
		assert.Equal(t, "hello", string(buf))
		assert.NoError(t, c.Close())
		assert.NoError(t, s.Close())
	}
	for i, host := range []string{testenv.Host(), testenv.Host(), "localhost", "localhost"} {
		visit("rdma", near, host, i > 0)
		h.onThread(func() { visit("rdma", far, host, i > 0) })
	}
	assert.Equal(t, 4, tr.Stats().Peers, "both sides of a control connection in each namespace")

	require.NoError(t, far.Close())
	h.onThread(func() {
		_, err := (&rdmanet.Dialer{Transport: tr, Providers: []string{"shm"}}).Dial("rdma", near.Addr().String())
		assert.ErrorIs(t, err, unix.ECONNREFUSED, "nobody listens there any more")
	})
	visit("rdma", near, testenv.Host(), true)
}

// TestHostsThreadsWithoutShm: providers that make sockets cannot be used from a thread in another
// namespace, which gets an error, and never a conn to the server of the process's namespace.
func TestHostsThreadsWithoutShm(t *testing.T) {
	for _, provider := range overCables {
		t.Run(provider, func(t *testing.T) {
			h := otherHost(t)
			d := dialer(t, provider)
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: d.Transport, Providers: d.Providers})
			rdmatest.Visit(t, d, l, "rdma", l.Addr().String())
			h.onThread(func() {
				_, err := d.Dial("rdma", l.Addr().String())
				assert.ErrorIs(t, err, unix.ECONNREFUSED, "nobody listens there")
				plain, err := net.Listen("tcp", l.Addr().String())
				if !assert.NoError(t, err) {
					return
				}
				defer plain.Close()
				_, err = d.Dial("rdma", l.Addr().String())
				assert.ErrorIs(t, err, rdmanet.ErrProviderUnavailable)
				assert.ErrorContains(t, err, "network namespace")
				_, err = (&rdmanet.ListenConfig{Transport: d.Transport, Providers: d.Providers}).Listen(t.Context(), "rdma", testenv.Address())
				assert.ErrorIs(t, err, rdmanet.ErrProviderUnavailable)
			})
			rdmatest.Visit(t, d, l, "rdma", l.Addr().String())
		})
	}
}

// TestHostsThreadsReachBoth: from a thread in the far host's namespace another process there is reached,
// and one of this host over the cable.
func TestHostsThreadsReachBoth(t *testing.T) {
	h := cabled(t)
	port := h.counterpart("shm")
	d := dialer(t, "shm")
	nearAddr := rdmatest.StartCounterpart(t, "shm")
	for range 2 {
		trade(t, d, net.JoinHostPort(far4, port), 1, 1<<20)
		trade(t, d, nearAddr, 1, 1<<20)
		h.onThread(func() {
			trade(t, d, net.JoinHostPort("127.0.0.1", port), 1, 1<<20)
			trade(t, d, net.JoinHostPort("four.far", port), 1, 1<<20)
		})
	}
}
