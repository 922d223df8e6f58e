package rdmanet_test

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
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

// plainServer starts a TCP server that sends a banner and then only reads. It returns its address.
func plainServer(t *testing.T, banner string) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.WriteString(c, banner)
				_, _ = io.Copy(io.Discard, c)
			}()
		}
	}()
	return ln.Addr().String()
}

// TestFallbackAfterRestart: a server that resets a connection since it ends is not taken for one of another protocol
// once it is back.
func TestFallbackAfterRestart(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	ending, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() {
		nc, err := ending.Accept()
		_ = ending.Close()
		if err == nil {
			_ = nc.(*net.TCPConn).SetLinger(0)
			_ = nc.Close()
		}
	}()
	d := rdmanet.Dialer{Transport: tr, Providers: []string{"tcp;ofi_rxm"}, Fallback: rdmanet.FallbackTCP}
	_, err = d.Dial("rdma", ending.Addr().String())
	require.Error(t, err)
	l, err := (&rdmanet.ListenConfig{Transport: tr, Providers: d.Providers, AcceptTCP: true}).Listen(t.Context(), "rdma", ending.Addr().String())
	require.NoError(t, err)
	defer l.Close()
	c, err := d.Dial("rdma", l.Addr().String())
	require.NoError(t, err)
	assert.IsType(t, (*rdmanet.Conn)(nil), c)
	require.NoError(t, c.Close())
}

func TestFallback(t *testing.T) {
	tr := simulated(t, simfabric.TCP(), simfabric.Net())
	other := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: []string{"net"}, AcceptTCP: true})
	d := rdmanet.Dialer{Transport: tr, Providers: []string{"tcp;ofi_rxm"}, Timeout: time.Second}
	for name, tt := range map[string]struct {
		address   string
		providers string
		reason    error
		counter   string
	}{
		"another protocol":   {plainServer(t, "220 mail.example\r\n"), "tcp;ofi_rxm", rdmanet.ErrNotRdmanet, "not rdmanet"},
		"silence":            {silent(t), "tcp;ofi_rxm", rdmanet.ErrHandshakeTimeout, "timeout"},
		"no common provider": {other.Addr().String(), "tcp;ofi_rxm", rdmanet.ErrNoProvider, "no provider"},
		"no provider":        {other.Addr().String(), "efa", rdmanet.ErrProviderUnavailable, "no provider"},
	} {
		t.Run(name, func(t *testing.T) {
			d := d
			var log lockedBuffer
			d.Providers, d.Logger = []string{tt.providers}, slog.New(slog.NewTextHandler(&log, nil))
			_, err := d.Dial("rdma", tt.address)
			require.Error(t, err, "never unless it was chosen")
			d.Fallback, d.Timeout = rdmanet.FallbackTCP, rdmatest.Patience
			before := tr.Stats().Fallbacks[tt.counter]
			c, err := d.Dial("rdma", tt.address)
			require.NoError(t, err)
			defer c.Close()
			assert.IsType(t, (*net.TCPConn)(nil), c)
			info := rdmatest.InfoOf(t, c)
			assert.True(t, info.Dialed)
			assert.Equal(t, "tcp", info.SmallPath)
			assert.ErrorIs(t, info.Fallback, tt.reason)
			rdmatest.Eventually(t, func() bool { return strings.Contains(log.String(), tt.reason.Error()) }, "it is logged")
			assert.Contains(t, log.String(), "peer="+tt.address)
			assert.Empty(t, info.Provider)
			assert.Equal(t, tt.address, c.RemoteAddr().String())
			assert.Equal(t, before+1, tr.Stats().Fallbacks[tt.counter])
		})
	}
	t.Run("TLS", func(t *testing.T) {
		d := d
		d.Fallback, d.TLSConfig, d.Timeout = rdmanet.FallbackTCP, &tls.Config{}, rdmatest.Patience
		address := plainServer(t, "220 mail.example\r\n")
		_, err := d.Dial("rdma", address)
		require.ErrorIs(t, err, rdmanet.ErrNotRdmanet)
		assert.ErrorContains(t, err, "AllowInsecureFallback")
		d.AllowInsecureFallback = true
		c, err := d.Dial("rdma", address)
		require.NoError(t, err)
		require.NoError(t, c.Close())
	})
}

// slowToLoad is a fabric whose first listing of providers takes long.
type slowToLoad struct {
	*simfabric.Network
	loaded atomic.Bool
	takes  time.Duration
}

func (s *slowToLoad) Providers(src netip.Addr) ([]fabric.ProviderInfo, error) {
	if !s.loaded.Swap(true) {
		time.Sleep(s.takes)
	}
	return s.Network.Providers(src)
}

// TestFallbackAfterSlowLoad: the time that this side takes to load libfabric counts neither as
// the listener's nor as that of the fallback.
func TestFallbackAfterSlowLoad(t *testing.T) {
	n := simfabric.New(simfabric.Config{Personality: simfabric.TCP()})
	there := rdmanet.NewTransport(n)
	t.Cleanup(func() { there.Close() })
	for name, address := range map[string]string{
		"fabric": rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there}).Addr().String(),
		"TCP":    silent(t),
	} {
		t.Run(name, func(t *testing.T) {
			here := rdmanet.NewTransport(&slowToLoad{Network: n, takes: 1800 * time.Millisecond})
			defer here.Close()
			d := rdmanet.Dialer{Transport: here, Timeout: 3 * time.Second, Fallback: rdmanet.FallbackTCP}
			c, err := d.Dial("rdma", address)
			require.NoError(t, err)
			assert.Equal(t, name == "TCP", rdmatest.InfoOf(t, c).Fallback != nil)
			require.NoError(t, c.Close())
		})
	}
}

func TestAcceptTCP(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, AcceptTCP: true})
	for _, first := range []string{"G", "RDM", "RDMX", "GET / HTTP/1.1\r\n"} {
		nc, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		_, err = io.WriteString(nc, first)
		require.NoError(t, err)
		if first == "RDM" { // could still become a preamble, until the stream ends
			require.NoError(t, nc.(*net.TCPConn).CloseWrite())
		}
		s := rdmatest.AcceptPlain(t, l)
		got := make([]byte, len(first))
		_, err = io.ReadFull(s, got)
		require.NoError(t, err)
		assert.Equal(t, first, string(got), "nothing is lost")
		info := rdmatest.InfoOf(t, s)
		assert.False(t, info.Dialed)
		assert.NoError(t, info.Fallback)
		_, err = s.ReadFrom(bytes.NewReader([]byte("answer")))
		require.NoError(t, err)
		require.NoError(t, s.CloseWrite())
		answer, err := io.ReadAll(nc)
		require.NoError(t, err)
		assert.Equal(t, "answer", string(answer))
		rdmatest.CloseAll(t, s, nc)
	}
	c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr}, l)
	assert.Equal(t, "tcp;ofi_rxm", s.Info().Provider)
	rdmatest.CloseAll(t, c, s)
}

// TestCopies: what ReadFrom, WriteTo, WriteBuffers and Buffers carry arrives whole.
func TestCopies(t *testing.T) {
	data := make([]byte, 300_001)
	rand.Read(data)
	name := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(name, data, 0o600))
	for way, send := range map[string]func(t *testing.T, c *rdmanet.Conn){
		"file": func(t *testing.T, c *rdmanet.Conn) {
			f, err := os.Open(name)
			require.NoError(t, err)
			defer f.Close()
			n, err := c.ReadFrom(&io.LimitedReader{R: f, N: 1 << 30})
			assert.NoError(t, err)
			assert.EqualValues(t, len(data), n)
		},
		"reader": func(t *testing.T, c *rdmanet.Conn) {
			n, err := c.ReadFrom(bytes.NewReader(data))
			assert.NoError(t, err)
			assert.EqualValues(t, len(data), n)
		},
		"buffers": func(t *testing.T, c *rdmanet.Conn) {
			v := net.Buffers{data[:3], nil, data[3:1000], data[1000:200_000], data[200_000:]}
			n, err := c.WriteBuffers(&v)
			assert.NoError(t, err)
			assert.EqualValues(t, len(data), n)
			assert.Empty(t, v)
		},
		"registered": func(t *testing.T, c *rdmanet.Conn) {
			b, err := c.AllocBuffer(len(data))
			require.NoError(t, err)
			copy(b.Bytes(), data)
			assert.NoError(t, c.SendBuffer(b))
		},
	} {
		t.Run(way, func(t *testing.T) {
			onEach(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
				l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: providers})
				c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr, Providers: providers}, l)
				done := make(chan []byte)
				go func() {
					var got bytes.Buffer
					_, err := s.WriteTo(&got)
					assert.NoError(t, err)
					done <- got.Bytes()
				}()
				send(t, c)
				require.NoError(t, c.CloseWrite())
				require.True(t, bytes.Equal(data, <-done))
				rdmatest.CloseAll(t, c, s)
			})
		})
	}
}

// TestReadFromTimesOut: a ReadFrom that a deadline ends returns exactly how much the peer will get.
func TestReadFromTimesOut(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(name, make([]byte, 16<<20), 0o600))
	for _, p := range []simfabric.Personality{simfabric.Shm(), simfabric.TCP(), simfabric.EFA()} {
		t.Run(p.Provider, func(t *testing.T) {
			tr := simulated(t, p)
			tr.ReceiveWindow = 100_000
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
			c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr}, l)
			f, err := os.Open(name)
			require.NoError(t, err)
			defer f.Close()
			_, err = c.Write(make([]byte, 1001)) // so that no piece of the file ends where the window does
			require.NoError(t, err)
			require.NoError(t, c.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
			sent, err := c.ReadFrom(f)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			got := make(chan int64)
			go func() {
				n, err := io.Copy(io.Discard, s)
				assert.NoError(t, err)
				got <- n
			}()
			require.NoError(t, c.SetWriteDeadline(time.Time{}))
			require.NoError(t, c.CloseWrite())
			assert.Equal(t, <-got, sent+1001)
			rdmatest.CloseAll(t, c, s)
		})
	}
}
