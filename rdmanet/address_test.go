package rdmanet_test

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// pairOfTCP returns the two ends of a TCP connection, to compare with.
func pairOfTCP(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	client, err = net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	server, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { rdmatest.CloseAll(t, client, server) })
	return client, server
}

// TestAddressesAsTCP: what programs do with an address does with a conn's what it does with a
// TCP connection's.
func TestAddressesAsTCP(t *testing.T) {
	tc, ts := pairOfTCP(t)
	onEach(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: providers})
		c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr, Providers: providers}, l)
		assert.Equal(t, l.Addr().String(), c.RemoteAddr().String(), "the listener's is the real one")
		assert.Equal(t, []net.Addr{s.RemoteAddr(), s.LocalAddr()}, addrs(c), "both sides agree")
		for _, pair := range [][2]net.Conn{{tc, c}, {ts, s}} {
			for i := range 2 {
				tcp, ours := addrs(pair[0])[i], addrs(pair[1])[i]
				require.IsType(t, tcp, ours)
				want, got := tcp.(*net.TCPAddr), ours.(*net.TCPAddr)
				assert.Equal(t, want.Network(), got.Network())
				assert.Equal(t, want.IP, got.IP)
				assert.Same(t, got, addrs(pair[1])[i].(*net.TCPAddr), "one for each conn")

				text, err := json.Marshal(ours)
				require.NoError(t, err)
				var again net.TCPAddr
				require.NoError(t, json.Unmarshal(text, &again))
				assert.Equal(t, got.String(), again.String())

				var b bytes.Buffer
				require.NoError(t, gob.NewEncoder(&b).Encode(ours))
				again = net.TCPAddr{}
				require.NoError(t, gob.NewDecoder(&b).Decode(&again))
				assert.Equal(t, got.String(), again.String())

				assert.Equal(t, logged(t, tcp, want.Port), logged(t, ours, got.Port))
			}
		}
		rdmatest.CloseAll(t, c, s)
	})
}

// logged returns what slog's JSON says of an address, with 1 for its port.
func logged(t *testing.T, a net.Addr, port int) string {
	t.Helper()
	var b bytes.Buffer
	slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "remote", a)
	var line struct {
		Remote struct {
			IP   string
			Port int
			Zone string
		}
	}
	require.NoError(t, json.Unmarshal(b.Bytes(), &line), "%s", &b)
	assert.Equal(t, port, line.Remote.Port)
	line.Remote.Port = 1
	return fmt.Sprint(line.Remote)
}

// TestPortsOfConns: no two live conns of a listener have equal addresses, whether they share a
// control connection or not, nor have conns that follow each other. Each can be told apart on both
// sides, which agree.
func TestPortsOfConns(t *testing.T) {
	onEach(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: providers})
		shared := &rdmanet.Dialer{Transport: tr, Providers: providers}
		var conns []net.Conn
		here, there := make(map[string]bool), make(map[string]bool)
		for range 20 {
			c, s := rdmatest.Meet(t, shared, l)
			require.Equal(t, c.LocalAddr().String(), s.RemoteAddr().String())
			here[c.LocalAddr().String()], there[s.RemoteAddr().String()] = true, true
			conns = append(conns, c, s)
		}
		for range 2 { // each with a control connection of its own
			c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr, Providers: providers, DisableReuse: true}, l)
			here[c.LocalAddr().String()], there[s.RemoteAddr().String()] = true, true
			conns = append(conns, c, s)
		}
		assert.Len(t, here, 22)
		assert.Len(t, there, 22)
		rdmatest.CloseAll(t, conns...)
		for i := range 20 {
			c, s := rdmatest.Meet(t, shared, l)
			here[c.LocalAddr().String()] = true
			assert.Len(t, here, 23+i, "not one that was used a moment ago")
			rdmatest.CloseAll(t, c, s)
		}
	})
}

// TestRequestsByAddress: servers of package net/http tell clients' connections apart by
// Request.RemoteAddr, and take the host from it.
func TestRequestsByAddress(t *testing.T) {
	onEach(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: providers})
		var mu sync.Mutex
		seen := make(map[string]int)
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			host, _, err := net.SplitHostPort(r.RemoteAddr)
			assert.NoError(t, err)
			assert.Equal(t, "127.0.0.1", host)
			seen[r.RemoteAddr]++
		}))
		require.NoError(t, server.Listener.Close())
		server.Listener = l
		server.Start()
		defer server.Close()
		d := &rdmanet.Dialer{Transport: tr, Providers: providers}
		for range 3 {
			client := &http.Client{Transport: &http.Transport{DialContext: d.DialContext}, Timeout: rdmatest.Patience}
			for range 2 {
				resp, err := client.Get(server.URL)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
			}
			client.CloseIdleConnections()
		}
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, seen, 3)
		for _, n := range seen {
			assert.Equal(t, 2, n)
		}
	})
}

// perIP is the rule by which fasthttp limits the conns from an address (getConnIP4 and
// perIPConnCounter): a conn whose address is no *net.TCPAddr is not limited at all.
func perIP(c net.Conn) (ip [4]byte, ok bool) {
	a, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return ip, false
	}
	v4 := a.IP.To4()
	if len(v4) != 4 {
		return ip, false
	}
	return [4]byte(v4), true
}

func TestLimitPerIP(t *testing.T) {
	onEach(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: providers})
		c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr, Providers: providers}, l)
		ip, ok := perIP(s)
		assert.True(t, ok)
		assert.Equal(t, [4]byte{127, 0, 0, 1}, ip)
		rdmatest.CloseAll(t, c, s)
	})
}

// TestPortAfterReset: a server that resets each conn as soon as it has it gives the dialing side
// addresses all the same.
func TestPortAfterReset(t *testing.T) {
	onPersonalities(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: providers})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := 0; ; i++ {
				c, err := l.Accept()
				if err != nil {
					return
				}
				if i%2 == 0 {
					_ = c.(*rdmanet.Conn).SetLinger(0)
				}
				_ = c.Close()
			}
		}()
		d := &rdmanet.Dialer{Transport: tr, Providers: providers, Timeout: rdmatest.Patience}
		for range 50 {
			c, err := d.Dial("rdma", l.Addr().String())
			require.NoError(t, err)
			assert.GreaterOrEqual(t, c.LocalAddr().(*net.TCPAddr).Port, 1024)
			_ = c.(*rdmanet.Conn).SetLinger(0)
			require.NoError(t, c.Close())
		}
		require.NoError(t, l.Close())
		<-done
	})
}

// TestAddressesAfterListener: conns of a closed listener and of its successor have different addresses.
func TestAddressesAfterListener(t *testing.T) {
	onEach(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		lc := rdmanet.ListenConfig{Transport: tr, Providers: providers}
		d := &rdmanet.Dialer{Transport: tr, Providers: providers}
		l, port := rdmatest.ListenAt(t, lc, "127.0.0.1:0")
		var all []net.Conn
		seen := make(map[string]bool)
		meet := func(l *rdmanet.Listener) {
			c, s := rdmatest.Meet(t, d, l)
			all = append(all, c, s)
			pair := c.LocalAddr().String() + "->" + c.RemoteAddr().String()
			assert.False(t, seen[pair], pair)
			seen[pair] = true
		}
		meet(l)
		meet(l)
		require.NoError(t, l.Close())
		l, _ = rdmatest.ListenAt(t, lc, "127.0.0.1:"+port)
		meet(l)
		meet(l)
		rdmatest.CloseAll(t, all...)
	})
}
