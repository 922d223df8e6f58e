package bootstrap

import (
	"context"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
)

// tcpPair returns the two ends of a TCP connection.
func tcpPair(t *testing.T) (client, server *net.TCPConn) {
	t.Helper()
	c, s := loopback(t)
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

func TestSniff(t *testing.T) {
	for _, tt := range []struct {
		name, send string
		fabric     bool
	}{
		{"preamble", string(clearPreamble) + "more", true},
		{"HTTP", "GET / HTTP/1.1\r\n\r\n", false},
		{"one byte", "G", false},
		{"looks similar", "RDMA is great", false},
		{"similar to the end", "RDM", false},
		{"all of a preamble but a byte", string(clearPreamble[:framing.PreambleSize-1]), false},
		{"nothing", "", false},
	} {
		for _, pause := range []bool{false, true} { // the end comes alone
			t.Run(tt.name, func(t *testing.T) {
				c, s := tcpPair(t)
				end := func() { assert.NoError(t, c.CloseWrite()) }
				_, err := io.WriteString(c, tt.send)
				require.NoError(t, err)
				if pause {
					time.AfterFunc(20*time.Millisecond, end)
				} else {
					end()
				}
				fabric, err := Sniff(s, time.Now().Add(10*time.Second))
				require.NoError(t, err)
				assert.Equal(t, tt.fabric, fabric)
				all, err := io.ReadAll(s)
				require.NoError(t, err)
				assert.Equal(t, tt.send, string(all), "nothing is taken")
			})
		}
	}
	t.Run("byte by byte", func(t *testing.T) {
		c, s := tcpPair(t)
		go func() {
			for i := range clearPreamble {
				time.Sleep(2 * time.Millisecond)
				_, err := c.Write(clearPreamble[i:][:1])
				assert.NoError(t, err)
			}
		}()
		fabric, err := Sniff(s, time.Now().Add(10*time.Second))
		require.NoError(t, err)
		assert.True(t, fabric)
	})
	t.Run("a client that sends less than a preamble and waits", func(t *testing.T) {
		c, s := tcpPair(t)
		_, err := io.WriteString(c, "PING")
		require.NoError(t, err)
		fabric, err := Sniff(s, time.Time{})
		require.NoError(t, err)
		assert.False(t, fabric)
	})
	t.Run("a reset", func(t *testing.T) {
		c, s := tcpPair(t)
		_, err := io.WriteString(c, "RD")
		require.NoError(t, err)
		require.NoError(t, c.SetLinger(0))
		time.AfterFunc(20*time.Millisecond, func() { c.Close() })
		fabric, err := Sniff(s, time.Now().Add(10*time.Second))
		require.NoError(t, err)
		assert.False(t, fabric)
		_, err = io.ReadAll(s)
		assert.ErrorIs(t, err, syscall.ECONNRESET, "the server sees it")
	})
	t.Run("closed meanwhile", func(t *testing.T) {
		_, s := tcpPair(t)
		time.AfterFunc(20*time.Millisecond, func() { s.Close() })
		_, err := Sniff(s, time.Now().Add(10*time.Second))
		assert.ErrorIs(t, err, net.ErrClosed)
	})
	t.Run("then Accept", func(t *testing.T) {
		dnc, lnc := loopback(t)
		sniffed := func(ctx context.Context, nc net.Conn, cfg Config, b Binder) (*Session, Binding, error) {
			fabric, err := Sniff(nc.(*net.TCPConn), time.Now().Add(10*time.Second))
			assert.NoError(t, err)
			assert.True(t, fabric)
			return Accept(ctx, nc, cfg, b)
		}
		lc := start(t.Context(), sniffed, lnc, Config{}, newBinder(offer("tcp")))
		dr := <-start(t.Context(), Dial, dnc, Config{}, newBinder(offer("tcp")))
		lr := <-lc
		require.NoError(t, dr.err)
		require.NoError(t, lr.err)
		assert.NoError(t, dr.s.Close())
		assert.NoError(t, lr.s.Close())
	})
}

// TestSniffSilence: a client that sends nothing, or part of a preamble, is waited for until the
// deadline, without polling.
func TestSniffSilence(t *testing.T) {
	const wait = 300 * time.Millisecond
	for _, sent := range []string{"", "R", "RDMN", string(clearPreamble[:framing.PreambleSize-1])} {
		t.Run(sent, func(t *testing.T) {
			c, s := tcpPair(t)
			_, err := io.WriteString(c, sent)
			require.NoError(t, err)
			before, began := processorTime(t), time.Now()
			_, err = Sniff(s, began.Add(wait))
			isTimeout(t, err)
			assert.GreaterOrEqual(t, time.Since(began), wait)
			assert.Less(t, processorTime(t)-before, wait/3, "it polls")
			require.NoError(t, s.SetReadDeadline(time.Time{}))
			got := make([]byte, len(sent))
			_, err = io.ReadFull(s, got)
			require.NoError(t, err)
			assert.Equal(t, sent, string(got))
		})
	}
}

// processorTime is how much time this process has had on processors.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
