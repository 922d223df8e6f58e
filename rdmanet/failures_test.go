package rdmanet_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// faulty is a fabric on which one provider writes a byte too few, for as long as spoils
// is set.
type faulty struct {
	*simfabric.Network
	provider string
	spoils   *atomic.Bool
}

func (f faulty) Open(name string, src netip.Addr) (fabric.Endpoint, error) {
	ep, err := f.Network.Open(name, src)
	if provider, _ := fabric.Split(name); err == nil && provider == f.provider {
		ep = spoiler{ep, f.spoils}
	}
	return ep, err
}

type spoiler struct {
	fabric.Endpoint
	spoils *atomic.Bool
}

func (s spoiler) Exchange(ops []fabric.Op, done []fabric.Completion) (int, int, error) {
	ops = slices.Clone(ops)
	for i, op := range ops {
		if (op.Kind == fabric.Write || op.Kind == fabric.WriteData) && s.spoils.Load() {
			ops[i].Buf = op.Buf[:len(op.Buf)-1]
		}
	}
	return s.Endpoint.Exchange(ops, done)
}

func both(first simfabric.Personality) *simfabric.Network {
	return simfabric.New(simfabric.Config{Seed: 1, Personality: first, Others: []simfabric.Personality{simfabric.TCP()}})
}

// dialFresh dials without reusing a control connection, closes the conn, and returns its info and how
// long the dial took.
func dialFresh(t *testing.T, d rdmanet.Dialer, address string) (info rdmanet.ConnInfo, took time.Duration) {
	t.Helper()
	d.DisableReuse = true
	begin := time.Now()
	c, err := d.Dial("rdma", address)
	require.NoError(t, err)
	took = time.Since(begin)
	info = rdmatest.InfoOf(t, c)
	require.NoError(t, c.Close())
	return info, took
}

// TestSilentProviderIsPassedOver: a provider that never reports what has arrived, like shm of
// libfabric 2.0 to 2.3 to a program that relies on a flag, costs a second once, and then nothing
// for as long as that is remembered.
func TestSilentProviderIsPassedOver(t *testing.T) {
	n := both(simfabric.ShmUnflagged())
	here, there := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
	rdmatest.Cleanly(t, here)
	defer there.Close()
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
	var peer rdmanet.ConnInfo
	accepted := make(chan struct{}, 2)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			peer = c.(*rdmanet.Conn).Info()
			accepted <- struct{}{}
			c.Close()
		}
	}()
	d := rdmanet.Dialer{Transport: here}
	info, took := dialFresh(t, d, l.Addr().String())
	<-accepted
	for _, i := range []rdmanet.ConnInfo{info, peer} {
		assert.Equal(t, "tcp;ofi_rxm", i.Provider)
		assert.Contains(t, fmt.Sprint(i.Refused), "the fabric is silent, though the peer answers over TCP")
	}
	assert.GreaterOrEqual(t, took, time.Second)
	assert.Less(t, took, 4*time.Second, "not half of ten seconds")
	info, took = dialFresh(t, d, l.Addr().String())
	<-accepted
	assert.Equal(t, "tcp;ofi_rxm", info.Provider)
	assert.Less(t, took, time.Second)
	assert.Contains(t, fmt.Sprint(info.Refused), "tried again in")
	assert.Equal(t, map[string]uint64{"shm": 1}, here.Stats().PathFailures)
}

// TestWrongContentsArePassedOver: wrong contents are noticed at once and remembered. The provider is
// used again when that time is over and it works.
func TestWrongContentsArePassedOver(t *testing.T) {
	f := faulty{both(simfabric.Verbs()), "verbs;ofi_rxm", new(atomic.Bool)}
	f.spoils.Store(true)
	here, there := rdmanet.NewTransport(f), rdmanet.NewTransport(f)
	here.FailureMemory = 500 * time.Millisecond
	rdmatest.Cleanly(t, here)
	defer there.Close()
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, Backlog: 1 << 20})
	d := rdmanet.Dialer{Transport: here}
	info, _ := dialFresh(t, d, l.Addr().String())
	assert.Equal(t, "tcp;ofi_rxm", info.Provider)
	assert.Contains(t, fmt.Sprint(info.Refused), "the fabric delivers wrong contents")
	assert.Equal(t, map[string]uint64{"verbs;ofi_rxm": 1}, here.Stats().PathFailures)
	f.spoils.Store(false)
	rdmatest.Eventually(t, func() bool {
		info, _ := dialFresh(t, d, l.Addr().String())
		return info.Provider == "verbs;ofi_rxm"
	}, "it is tried again")
	assert.Equal(t, map[string]uint64{"verbs;ofi_rxm": 1}, here.Stats().PathFailures)
}

// TestOnlyProviderIsTriedAgain: a remembered failure does not keep a dial from trying the only
// provider, unless that dial has TCP as an alternative.
func TestOnlyProviderIsTriedAgain(t *testing.T) {
	f := faulty{simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.TCP()}), "tcp;ofi_rxm", new(atomic.Bool)}
	f.spoils.Store(true)
	here, there := rdmanet.NewTransport(f), rdmanet.NewTransport(f)
	rdmatest.Cleanly(t, here)
	defer there.Close()
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, AcceptTCP: true})
	d := rdmanet.Dialer{Transport: here}
	for range 2 {
		_, err := d.Dial("rdma", l.Addr().String())
		require.ErrorIs(t, err, rdmanet.ErrNoProvider)
		require.ErrorContains(t, err, "wrong contents")
	}
	d.Fallback = rdmanet.FallbackTCP
	c, err := d.Dial("rdma", l.Addr().String())
	require.NoError(t, err)
	assert.ErrorContains(t, rdmatest.InfoOf(t, c).Fallback, "tried again in")
	require.NoError(t, c.Close())
	assert.EqualValues(t, 2, here.Stats().PathFailures["tcp;ofi_rxm"])
	f.spoils.Store(false)
	d.Fallback = rdmanet.FallbackNone
	info, _ := dialFresh(t, d, l.Addr().String())
	assert.Equal(t, "tcp;ofi_rxm", info.Provider)
}

// TestForeignListenerIsRemembered: that something else listens at an address is found out once, not in each Dial.
func TestForeignListenerIsRemembered(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	address := silent(t)
	d := rdmanet.Dialer{Transport: tr, Fallback: rdmanet.FallbackTCP}
	info, first := dialFresh(t, d, address)
	require.ErrorIs(t, info.Fallback, rdmanet.ErrHandshakeTimeout)
	assert.GreaterOrEqual(t, first, 2*time.Second)
	for range 3 {
		info, took := dialFresh(t, d, address)
		require.ErrorIs(t, info.Fallback, rdmanet.ErrHandshakeTimeout)
		assert.Less(t, took, time.Second)
	}
	assert.EqualValues(t, 4, tr.Stats().Fallbacks["timeout"])
	assert.EqualValues(t, 1, tr.Stats().HandshakeFailures["timeout"])
}

// gate passes connections on to an address. While it is shut it only accepts them, as the
// kernel does for a process that is busy.
type gate struct {
	net.Listener
	shut atomic.Bool
}

func newGate(t *testing.T, to string) *gate {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := &gate{Listener: ln}
	var open sync.WaitGroup
	var conns []net.Conn
	open.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				break
			}
			conns = append(conns, in)
			if g.shut.Load() {
				continue
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				break
			}
			conns = append(conns, out)
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				open.Go(func() {
					// OnlyReader avoids splice(2), whose pipes stay open until they are garbage-collected.
					_, _ = io.Copy(way[0], rdmatest.OnlyReader{Reader: way[1]})
					_ = way[0].Close()
				})
			}
		}
		for _, c := range conns {
			_ = c.Close()
		}
	})
	t.Cleanup(func() { _ = ln.Close(); open.Wait() })
	return g
}

// meetBusy makes a dial meet a listener that is busy for longer than the dial waits.
func meetBusy(t *testing.T, tr *rdmanet.Transport, g *gate, timeout time.Duration) {
	g.shut.Store(true)
	defer g.shut.Store(false)
	info, _ := dialFresh(t, rdmanet.Dialer{Transport: tr, Fallback: rdmanet.FallbackTCP, Timeout: timeout}, g.Addr().String())
	require.ErrorIs(t, info.Fallback, rdmanet.ErrHandshakeTimeout)
}

// TestHurriedDialIsNotRemembered: a dial that had little time proves nothing about the listener to dials that have more.
func TestHurriedDialIsNotRemembered(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	g := newGate(t, rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr}).Addr().String())
	meetBusy(t, tr, g, 400*time.Millisecond)
	info, _ := dialFresh(t, rdmanet.Dialer{Transport: tr, Fallback: rdmanet.FallbackTCP}, g.Addr().String())
	assert.NoError(t, info.Fallback)
	assert.Equal(t, "tcp;ofi_rxm", info.Provider)
}

// TestForeignAddressWithPeer: a dial that can reuse a peer ignores what is remembered of its address.
func TestForeignAddressWithPeer(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	g := newGate(t, rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr}).Addr().String())
	d := rdmanet.Dialer{Transport: tr, Fallback: rdmanet.FallbackTCP}
	first, err := d.Dial("rdma", g.Addr().String())
	require.NoError(t, err)
	defer first.Close()
	meetBusy(t, tr, g, 0)
	second, err := d.Dial("rdma", g.Addr().String())
	require.NoError(t, err)
	defer second.Close()
	info := rdmatest.InfoOf(t, second)
	assert.NoError(t, info.Fallback)
	assert.True(t, info.Reused)
}
