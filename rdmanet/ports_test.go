package rdmanet

import (
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
)

const firstPort = 1024

var here, elsewhere = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")

func takePort(t *testing.T, p *portSet, ip netip.Addr, wish uint16) uint16 {
	t.Helper()
	port, code := p.take(ip, wish)
	require.Zero(t, code)
	return port
}

func TestPorts(t *testing.T) {
	var p portSet
	assert.EqualValues(t, 40000, takePort(t, &p, here, 40000))
	assert.EqualValues(t, 40000, takePort(t, &p, elsewhere, 40000), "of another host")
	assert.EqualValues(t, firstPort, takePort(t, &p, here, 40000), "it is taken")
	assert.EqualValues(t, 700, takePort(t, &p, here, 700))
	p.giveBack(here, firstPort)
	assert.EqualValues(t, firstPort+1, takePort(t, &p, here, 0), "not the one that was given back just now")
	p.giveBack(here, 40000)
	assert.EqualValues(t, 40000, takePort(t, &p, here, 40000))
	for _, port := range []uint16{40000, 700, firstPort + 1} {
		p.giveBack(here, port)
	}
	p.giveBack(elsewhere, 40000)
	assert.Empty(t, p.hosts[here].taken)
	assert.Empty(t, p.hosts[elsewhere].taken)
	assert.EqualValues(t, firstPort+2, takePort(t, &p, elsewhere, 0))
}

// TestPortsRunOut: all ports can be taken, and each once. The upper ones come last.
func TestPortsRunOut(t *testing.T) {
	var p portSet
	seen := make(map[uint16]bool)
	for i := range 1<<16 - firstPort {
		port := takePort(t, &p, here, 0)
		require.False(t, seen[port])
		require.GreaterOrEqual(t, port, uint16(firstPort))
		require.Equal(t, i < 1<<15-firstPort, port < 1<<15)
		seen[port] = true
	}
	for _, wish := range []uint16{0, 40000} {
		_, code := p.take(here, wish)
		assert.Equal(t, framing.ResetRefused, code)
	}
	takePort(t, &p, elsewhere, 0)
	p.giveBack(here, 50000)
	assert.EqualValues(t, 50000, takePort(t, &p, here, 0))
	p.giveBack(here, 2000)
	assert.EqualValues(t, 2000, takePort(t, &p, here, 0))
}

func TestPortsAtOnce(t *testing.T) {
	var p portSet
	var mu sync.Mutex
	now := make(map[uint16]bool)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				port, code := p.take(here, 30000)
				mu.Lock()
				assert.Zero(t, code)
				assert.False(t, now[port])
				now[port] = true
				mu.Unlock()
				mu.Lock()
				delete(now, port)
				mu.Unlock()
				p.giveBack(here, port)
			}
		})
	}
	wg.Wait()
	assert.Empty(t, p.hosts[here].taken)
}

// TestPortsOfManyHosts: hosts without conns are not remembered without bound.
func TestPortsOfManyHosts(t *testing.T) {
	var p portSet
	for ip, i := here, 0; i < 1000; ip, i = ip.Next(), i+1 {
		p.giveBack(ip, takePort(t, &p, ip, 0))
	}
	assert.LessOrEqual(t, len(p.hosts), emptyHosts)
}
