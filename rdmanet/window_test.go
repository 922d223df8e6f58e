package rdmanet_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// unread writes size bytes at a time until a Write waits for the reader, and returns how many it
// wrote. A Write that waits before least bytes are written may wait for a processor.
func unread(t *testing.T, c *rdmanet.Conn, size, least int) (sent int) {
	t.Helper()
	for b, begin := make([]byte, size), time.Now(); ; {
		assert.NoError(t, c.SetWriteDeadline(time.Now().Add(500*time.Millisecond)))
		n, err := c.Write(b)
		if sent += n; err != nil {
			assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
			if sent < least && time.Since(begin) < rdmatest.Patience {
				continue
			}
			assert.NoError(t, c.SetWriteDeadline(time.Time{}))
			return sent
		}
	}
}

// TestSmallWritesThatNobodyReads: as over TCP, a conn takes a mebibyte of small writes that nobody
// reads.
func TestSmallWritesThatNobodyReads(t *testing.T) {
	onEach(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		pipe := pipeOver(t, tr, providers[0])
		for _, size := range []int{64, 1000} {
			a, b := pipe()
			sent := unread(t, a, size, 1<<20)
			assert.GreaterOrEqual(t, sent, 1<<20, "in writes of %d bytes", size)
			_, err := io.CopyN(io.Discard, b, int64(sent))
			require.NoError(t, err)
			rdmatest.CloseAll(t, a, b)
		}
	})
}

// TestUnreadOnManyConns: a thousand conns that nobody reads hold what they were promised when they
// were opened, and no more.
func TestUnreadOnManyConns(t *testing.T) {
	test := func(t *testing.T, here, there *rdmanet.Transport, providers []string) {
		rdmatest.Cleanly(t, there)
		t.Cleanup(func() { assert.NoError(t, here.Close()) })
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, Providers: providers, Backlog: rdmatest.ManyConns})
		d := &rdmanet.Dialer{Transport: here, Providers: providers, Timeout: rdmatest.Patience}
		var conns [][2]*rdmanet.Conn
		for range rdmatest.ManyConns {
			c, s := rdmatest.Meet(t, d, l)
			conns = append(conns, [2]*rdmanet.Conn{c, s})
		}
		idle := there.Stats().Memory.Used
		var wg sync.WaitGroup
		var sent atomic.Int64
		for _, c := range conns {
			wg.Go(func() { sent.Add(int64(unread(t, c[0], 1000, 0))) })
		}
		wg.Wait()
		full := there.Stats().Memory
		t.Logf("%d MiB unread; %d MiB used before, and now %d", sent.Load()>>20, idle>>20, full.Used>>20)
		assert.LessOrEqual(t, sent.Load(), int64(rdmatest.ManyConns*rdmanet.DefaultReceiveWindow))
		const slots = 1 << 20 // a busy peer gets more receive slots
		assert.LessOrEqual(t, full.Used, idle+slots)
		for _, c := range conns {
			for _, c := range c {
				assert.NoError(t, c.SetLinger(0))
				assert.NoError(t, c.Close())
			}
		}
	}
	for _, p := range []simfabric.Personality{simfabric.Shm(), simfabric.TCP()} {
		t.Run("simulated "+p.Provider, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Seed: 1, Personality: p})
			test(t, rdmanet.NewTransport(n), rdmanet.NewTransport(n), []string{p.Provider})
		})
	}
	for _, provider := range rdmatest.Providers {
		t.Run(provider, func(t *testing.T) { test(t, new(rdmanet.Transport), new(rdmanet.Transport), []string{provider}) })
	}
}

// TestPipelinedRequests: a client that writes ten thousand requests to one conn, before it reads the
// first answer, gets all answers.
func TestPipelinedRequests(t *testing.T) {
	const requests = 10_000
	rdmatest.Over(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: providers})
		serveHTTP(t, l, &http.Server{
			Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) }),
			ReadHeaderTimeout: rdmatest.Patience,
		})
		d := &rdmanet.Dialer{Transport: tr, Providers: providers}
		c, err := d.DialContext(t.Context(), "rdma", l.Addr().String())
		require.NoError(t, err)
		defer c.Close()
		for i := range requests {
			require.NoError(t, c.SetDeadline(time.Now().Add(rdmatest.Patience)))
			_, err := fmt.Fprintf(c, "GET /%d HTTP/1.1\r\nHost: pipeline\r\n\r\n", i)
			require.NoError(t, err, "request %d", i)
		}
		for r, i := bufio.NewReader(c), 0; i < requests; i++ {
			require.NoError(t, c.SetDeadline(time.Now().Add(rdmatest.Patience)))
			resp, err := http.ReadResponse(r, nil)
			require.NoError(t, err, "answer %d", i)
			body := new(strings.Builder)
			_, err = io.Copy(body, resp.Body)
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint("/", i), body.String())
		}
	})
}
