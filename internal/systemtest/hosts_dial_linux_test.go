//go:build linux && cgo && hosts

package systemtest

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// overCables are the providers that need no device to reach another host. udp;ofi_rxd
// learns neither a path's MTU nor that a peer is lost. What it cannot do for that reason
// is left out, where a comment says so.
var overCables = []string{"tcp;ofi_rxm", testenv.Native, rxd}

const rxd = "udp;ofi_rxd"

// counterpart starts a counterpart on the far host, and returns its port.
func (h *farHost) counterpart(providers string) (port string) {
	h.t.Helper()
	_, port, err := net.SplitHostPort(rdmatest.Listening(h.t, h.process("counterpart", providers, "")))
	require.NoError(h.t, err)
	return port
}

// dialer returns a Dialer for real providers. The test checks that its Transport leaves nothing behind.
func dialer(t *testing.T, providers ...string) *rdmanet.Dialer {
	t.Helper()
	tr := new(rdmanet.Transport)
	rdmatest.Cleanly(t, tr)
	return &rdmanet.Dialer{Transport: tr, Providers: providers, Timeout: rdmatest.Patience}
}

// trade sends and receives size bytes at the same time, on each of several conns, and
// checks them all.
func trade(t *testing.T, d *rdmanet.Dialer, addr string, conns, size int) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range conns {
		o := rdmatest.Order{Duty: rdmatest.Exchange, Key: uint64(2 * i), Size: size}
		c := rdmatest.Give(t, d, addr, o)
		wg.Go(func() { assert.NoError(t, o.CarryOut(c, o.Key+1, rdmatest.Patience)) })
	}
	wg.Wait()
}

// Names and addresses of both families lead to the far host, and what is sent arrives in
// both directions.
func TestHostsAddresses(t *testing.T) {
	for _, provider := range overCables {
		t.Run(provider, func(t *testing.T) {
			h := cabled(t)
			port := h.counterpart(provider)
			d := dialer(t, provider)
			for _, tt := range []struct{ network, host, remote string }{
				{"rdma", far4, far4},
				{"rdma", far6, far6},
				{"rdma", "four.far", far4},
				{"rdma", "six.far", far6},
				{"rdma4", "far", far4},
				{"tcp6", "far", far6},
				{"rdma", "far", far4}, // RFC 6724 prefers IPv4 to a unique local address
			} {
				t.Run(tt.network+" "+tt.host, func(t *testing.T) {
					c, err := d.Dial(tt.network, net.JoinHostPort(tt.host, port))
					require.NoError(t, err)
					assert.Equal(t, net.JoinHostPort(tt.remote, port), c.RemoteAddr().String())
					assert.Equal(t, provider, c.(*rdmanet.Conn).Info().Provider)
					o := rdmatest.Order{Duty: rdmatest.Exchange, Key: 2, Size: 1 << 20}
					_, err = c.Write(o.Encode())
					require.NoError(t, err)
					require.NoError(t, o.CarryOut(c.(*rdmanet.Conn), o.Key+1, rdmatest.Patience))
				})
			}
		})
	}
}

// Packets may have any size, and different sizes at the two ends, since TCP's ends tell
// each other theirs. Over udp;ofi_rxd the sizes must not differ: a packet that is too long
// for the far end is lost, sent again, and lost again, until the peer is given up.
func TestHostsMTU(t *testing.T) {
	for name, tt := range map[string]struct {
		near, far int
		providers []string
	}{
		"small":     {1400, 1400, overCables},
		"jumbo":     {9000, 9000, overCables},
		"different": {9000, 1400, []string{"tcp;ofi_rxm", testenv.Native}},
	} {
		for _, provider := range tt.providers {
			t.Run(name+" "+provider, func(t *testing.T) {
				h := cabled(t)
				h.mtu(tt.near, tt.far)
				port := h.counterpart(provider)
				trade(t, dialer(t, provider), net.JoinHostPort(far4, port), 4, 4<<20)
			})
		}
	}
}

// A network that is slow and loses packets delays conns, and does nothing else to them.
func TestHostsSlowAndLossy(t *testing.T) {
	const delay, loss = 10 * time.Millisecond, 0.01
	for _, provider := range overCables {
		t.Run(provider, func(t *testing.T) {
			h := otherHost(t)
			w := h.wire(delay, loss)
			port := h.counterpart(provider)
			start := time.Now()
			trade(t, dialer(t, provider), net.JoinHostPort(far4, port), 4, 512<<10)
			t.Logf("%d of %d packets lost, %v", w.lost.Load(), w.all.Load(), time.Since(start))
			assert.Positive(t, w.lost.Load())
			assert.Greater(t, time.Since(start), 4*delay, "two round trips, at least")
		})
	}
}

// The lists of both sides decide which provider is used, and of the two the listener's order counts.
func TestHostsProviders(t *testing.T) {
	h, native := cabled(t), testenv.Native
	for name, tt := range map[string]struct {
		far    string
		near   []string
		want   string
		reason []string
	}{
		"one of two":         {native, []string{"tcp;ofi_rxm", native}, native, nil},
		"the listener's own": {native + ",tcp;ofi_rxm", []string{"tcp;ofi_rxm", native}, native, nil},
		"nothing in common": {native, []string{"tcp;ofi_rxm", "udp;ofi_rxd"}, "", []string{
			native + ": only one side offers it", "tcp;ofi_rxm: the listener does not offer it", "udp;ofi_rxd: the listener does not offer it",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			addr := net.JoinHostPort(far4, h.counterpart(tt.far))
			d := dialer(t, tt.near...)
			if tt.want != "" {
				c := rdmatest.Give(t, d, addr, rdmatest.Order{Duty: rdmatest.Sink})
				assert.Equal(t, tt.want, c.Info().Provider)
				require.NoError(t, c.Close())
				return
			}
			_, err := d.Dial("rdma", addr)
			require.ErrorIs(t, err, rdmanet.ErrNoProvider)
			for _, reason := range tt.reason {
				assert.ErrorContains(t, err, reason)
			}
		})
	}
}

// If no listener can be reached, Dial says so in time, and names the address.
func TestHostsUnreachable(t *testing.T) {
	h := cabled(t)
	h.here("ip", "route", "add", "unreachable", "10.78.0.0/24")
	const limit = 300 * time.Millisecond
	for name, tt := range map[string]struct {
		host    string
		want    error
		timeout bool
	}{
		"silence":  {absent, context.DeadlineExceeded, true},
		"no route": {"10.78.0.1", syscall.EHOSTUNREACH, false},
		"refused":  {far4, syscall.ECONNREFUSED, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := dialer(t, testenv.Native)
			d.Timeout = limit
			start := time.Now()
			_, err := d.Dial("rdma", net.JoinHostPort(tt.host, "9"))
			assert.Less(t, time.Since(start), limit+time.Second)
			var op *net.OpError
			require.ErrorAs(t, err, &op)
			assert.Equal(t, "dial", op.Op)
			assert.Equal(t, "rdma", op.Net)
			assert.Equal(t, tt.timeout, op.Timeout())
			assert.ErrorIs(t, err, tt.want)
			if assert.NotNil(t, op.Addr) {
				assert.Equal(t, net.JoinHostPort(tt.host, "9"), op.Addr.String())
			}
		})
	}
}

// service is an address that the kernel translates to the far host's, as that of a Kubernetes
// Service is. No host has it.
const service = "10.99.0.1"

// Behind address translation the listener's endpoint is not where the dialer has connected to. The
// dialer has to allow that, and can.
func TestHostsTranslation(t *testing.T) {
	for _, provider := range overCables {
		t.Run(provider, func(t *testing.T) {
			h := cabled(t)
			h.here("ip", "route", "add", service, "via", far4)
			h.here("nft", "add table ip services; add chain ip services out { type nat hook output priority -100; }; "+
				"add rule ip services out ip daddr "+service+" dnat to "+far4)
			t.Cleanup(func() { h.here("nft", "delete table ip services") })
			addr := net.JoinHostPort(service, h.counterpart(provider))

			d := dialer(t, provider)
			_, err := d.Dial("rdma", addr)
			require.ErrorIs(t, err, rdmanet.ErrNoProvider)
			assert.ErrorContains(t, err, "its endpoint is at "+far4+", and its control connection is at "+service+
				" (if that is right, add a prefix with the former to Dialer.EndpointPrefixes, or to RDMANET_ENDPOINT_PREFIXES, at the dialer)")

			allows := *d
			allows.EndpointPrefixes = []netip.Prefix{netip.MustParsePrefix("10.77.0.0/24")}
			trade(t, &allows, addr, 1, 1<<20)
			_, err = d.Dial("rdma", addr)
			require.ErrorIs(t, err, rdmanet.ErrNoProvider, "what another Dialer allows is not shared")
		})
	}
}
