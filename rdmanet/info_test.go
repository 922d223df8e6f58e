package rdmanet_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// addrs returns a conn's addresses, as its callers see them.
func addrs(c net.Conn) []net.Addr { return []net.Addr{c.LocalAddr(), c.RemoteAddr()} }

func TestInfoOfAddress(t *testing.T) {
	onEach(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: providers})
		d := &rdmanet.Dialer{Transport: tr, Providers: providers}
		a, b := rdmatest.Meet(t, d, l)
		again, other := rdmatest.Meet(t, d, l)
		ids := map[uint64]bool{}
		for _, c := range []*rdmanet.Conn{a, b, again, other} {
			ids[c.Info().ID] = true
			for _, addr := range append(addrs(c), addrs(tls.Client(c, &tls.Config{}))...) {
				info, ok := rdmanet.InfoOf(addr)
				require.True(t, ok)
				assert.Equal(t, c.Info(), info)
			}
		}
		assert.Len(t, ids, 4)
		rdmatest.Echo(t, a, b)
		rdmatest.CloseAll(t, a, b, again, other)
		info, ok := rdmanet.InfoOf(a.RemoteAddr())
		require.True(t, ok, "after Close, too")
		assert.Equal(t, a.Info(), info)
		assert.Equal(t, providers[0], info.Provider)
		assert.EqualValues(t, len("hello"), info.SmallSent)
		assert.Equal(t, l.Addr().String(), info.ControlRemote.String())
		for _, c := range []*rdmanet.Conn{again, b, other} {
			if i := c.Info(); i.Dialed {
				assert.Equal(t, info.ControlLocal, i.ControlLocal)
			} else {
				assert.Equal(t, info.ControlLocal, i.ControlRemote)
				assert.Equal(t, info.ControlRemote, i.ControlLocal)
			}
		}
	})
}

func TestInfoOfOtherAddresses(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	var seen rdmanet.PeerInfo
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Authorize: func(_ context.Context, p rdmanet.PeerInfo) error {
		seen = p
		return nil
	}})
	a, b := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr}, l)
	require.NoError(t, a.SetReadDeadline(time.Now().Add(-time.Second)))
	_, err := a.Read(make([]byte, 1))
	var oe *net.OpError
	require.ErrorAs(t, err, &oe)
	assert.Equal(t, a.LocalAddr().String(), oe.Source.String())
	assert.Equal(t, a.RemoteAddr().String(), oe.Addr.String())
	for what, addr := range map[string]net.Addr{
		"none":              nil,
		"no address at all": (*net.TCPAddr)(nil),
		"of another kind":   &net.UDPAddr{},
		"the zero address":  new(net.TCPAddr),
		"an equal one":      net.TCPAddrFromAddrPort(a.RemoteAddr().(*net.TCPAddr).AddrPort()),
		"a variable":        &someAddr,
		"the listener's":    l.Addr(),
		"Authorize's":       seen.RemoteAddr,
		"the control's":     a.Info().ControlLocal,
	} {
		info, ok := rdmanet.InfoOf(addr)
		assert.False(t, ok, what)
		assert.Zero(t, info, what)
	}
	for _, addr := range []net.Addr{oe.Source, oe.Addr} {
		info, ok := rdmanet.InfoOf(addr)
		assert.True(t, ok)
		assert.Equal(t, a.Info(), info)
	}
	rdmatest.CloseAll(t, a, b)
}

var someAddr net.TCPAddr

// Although an address leads to its conn, it is still an ordinary address: one per conn, as
// in package net, comparable, and printed as host:port only.
func TestAddressesOfConns(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
	d := &rdmanet.Dialer{Transport: tr}
	a, b := rdmatest.Meet(t, d, l)
	c, e := rdmatest.Meet(t, d, l)
	for i, addr := range addrs(a) {
		assert.Same(t, addr, addrs(a)[i])
	}
	for _, addr := range append(addrs(a), addrs(b)...) {
		assert.Equal(t, addr.String(), fmt.Sprint(addr))
		assert.Equal(t, addr.String(), fmt.Sprintf("%+v", addr))
	}
	// The addresses are compared while the conns are in use: the race detector watches.
	stop := make(chan struct{})
	used := make(chan struct{})
	go func() {
		defer close(used)
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = a.Write([]byte("x"))
				_, _ = b.Read(make([]byte, 1))
			}
		}
	}()
	for range 100 {
		assert.False(t, reflect.DeepEqual(a.LocalAddr(), c.LocalAddr()), "conns differ")
	}
	close(stop)
	<-used
	rdmatest.CloseAll(t, a, b, c, e)
}
