//go:build linux && cgo && hosts

package systemtest

import (
	"fmt"
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// linkLocal is a link-local address that several interfaces have: the zone decides which is meant.
const linkLocal = "fe80::77"

// The interfaces at the ends of a cable always have the same numbers, which no others have,
// since package net remembers them for a minute after a cable has gone.
const nearIndex, farIndex = "1001", "1002"

// zones gives two interfaces the same link-local address, and returns the interfaces.
func zones(t *testing.T, h *farHost) (cable, lo *net.Interface) {
	t.Helper()
	for _, name := range []string{device, "lo"} {
		h.here("ip", "address", "add", linkLocal+"/64", "dev", name, "nodad")
	}
	t.Cleanup(func() { h.here("ip", "address", "del", linkLocal+"/64", "dev", "lo") })
	cable, err := net.InterfaceByName(device)
	require.NoError(t, err)
	lo, err = net.InterfaceByName("lo")
	require.NoError(t, err)
	return cable, lo
}

// An interface is the same whether it is given by name or by number, and two interfaces
// with one address are different: in addresses, in the choice of a peer to reuse, and in
// what providers are bound to.
func TestHostsZones(t *testing.T) {
	h := cabled(t)
	cable, lo := zones(t, h)
	for _, provider := range []string{"shm", "tcp;ofi_rxm", testenv.Native} {
		for _, i := range []*net.Interface{cable, lo} {
			if provider != "shm" && i == lo {
				continue // libfabric gives it no link-local addresses
			}
			for _, zone := range []string{i.Name, strconv.Itoa(i.Index)} {
				t.Run(fmt.Sprintf("%s %%%s", provider, zone), func(t *testing.T) {
					tr := new(rdmanet.Transport)
					rdmatest.Cleanly(t, tr)
					lc := rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}}
					l, port := rdmatest.ListenAt(t, lc, "["+linkLocal+"%"+zone+"]:0")
					want := "[" + linkLocal + "%" + i.Name + "]:" + port
					assert.Equal(t, want, l.Addr().String(), "it can be dialed")
					d := &rdmanet.Dialer{Transport: tr, Providers: []string{provider}}
					c, s := rdmatest.Meet(t, d, l)
					assert.Equal(t, want, c.RemoteAddr().String())
					assert.Equal(t, want, s.LocalAddr().String())
					assert.Equal(t, c.LocalAddr().String(), s.RemoteAddr().String())
					rdmatest.Echo(t, c, s)
					for _, zone := range []string{i.Name, strconv.Itoa(i.Index)} {
						info := rdmatest.Visit(t, d, l, "rdma", "["+linkLocal+"%"+zone+"]:"+port)
						assert.True(t, info.Reused, "%%%s", zone)
						assert.Equal(t, provider, info.Provider)
					}
					bound := &rdmanet.Dialer{Transport: tr, Providers: d.Providers, LocalAddr: &net.TCPAddr{IP: net.ParseIP(linkLocal), Zone: i.Name}}
					assert.False(t, rdmatest.Visit(t, bound, l, "rdma", want).Reused)
					bound = &rdmanet.Dialer{Transport: tr, Providers: d.Providers, LocalAddr: &net.TCPAddr{IP: net.ParseIP(linkLocal), Zone: strconv.Itoa(i.Index)}}
					assert.True(t, rdmatest.Visit(t, bound, l, "rdma", want).Reused, "LocalAddr")
					rdmatest.CloseAll(t, c, s)
				})
			}
		}
	}
}

// Two hosts number the interfaces at their ends of a cable independently. udp;ofi_rxd is not
// tested: what it tells the far end about itself contains the near end's number.
func TestHostsLinkLocal(t *testing.T) {
	h := cabled(t)
	h.here("ip", "address", "add", "fe80::76/64", "dev", device, "nodad")
	h.there("ip", "address", "add", linkLocal+"/64", "dev", device, "nodad")
	for _, provider := range []string{"tcp;ofi_rxm", testenv.Native} {
		for _, zone := range []string{device, nearIndex} {
			t.Run(provider+" %"+zone, func(t *testing.T) {
				port := h.counterpart(provider)
				trade(t, dialer(t, provider), "["+linkLocal+"%"+zone+"]:"+port, 4, 1<<20)
			})
		}
	}
}
