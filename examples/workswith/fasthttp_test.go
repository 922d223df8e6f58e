//go:build works

package workswith_test

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestFasthttp: a server knows its clients' addresses, and its limit per address holds.
func TestFasthttp(t *testing.T) {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	require.NoError(t, err)
	server := &fasthttp.Server{
		MaxConnsPerIP: 2,
		Handler:       func(ctx *fasthttp.RequestCtx) { ctx.SetBodyString(ctx.RemoteIP().String()) },
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		assert.NoError(t, server.Shutdown())
		assert.NoError(t, <-served)
	})
	d := &rdmanet.Dialer{Timeout: 5 * time.Second}
	var conns []net.Conn
	for i := range 3 {
		c, err := d.Dial("rdma", l.Addr().String())
		require.NoError(t, err)
		conns = append(conns, c)
		require.NoError(t, c.SetDeadline(time.Now().Add(5*time.Second)))
		_, err = c.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
		if i < 2 {
			require.NoError(t, err)
		}
		b := make([]byte, 1000)
		n, _ := c.Read(b)
		if i < 2 {
			assert.Contains(t, string(b[:n]), "127.0.0.1")
		} else {
			assert.Contains(t, string(b[:n]), "429 Too Many Requests", "of one address")
		}
	}
	for _, c := range conns {
		_ = c.Close()
	}
}
