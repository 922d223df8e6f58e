package rdmanet_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// networkKey is the key of the connection's network in an HTTP server's contexts.
type networkKey struct{}

// mixedServer serves all of a listener's conns. It answers each request with the request's
// body, and says over which network that came.
func mixedServer(t *testing.T, l net.Listener, config *tls.Config) {
	t.Helper()
	srv := &http.Server{
		ReadHeaderTimeout: rdmatest.Patience,
		TLSConfig:         config,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			info, _ := rdmanet.InfoOf(c.RemoteAddr())
			return context.WithValue(ctx, networkKey{}, map[bool]string{true: "tcp", false: "rdma"}[info.Provider == ""])
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Network", r.Context().Value(networkKey{}).(string))
			body, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			_, err = w.Write(body)
			assert.NoError(t, err)
		}),
	}
	served := make(chan error, 1)
	go func() {
		if config != nil {
			served <- srv.ServeTLS(l, "", "")
		} else {
			served <- srv.Serve(l)
		}
	}()
	t.Cleanup(func() {
		assert.NoError(t, srv.Close())
		assert.ErrorIs(t, <-served, http.ErrServerClosed)
	})
}

// TestMixedHTTP: clients that know nothing of this package are served on the port
// that fabric clients use, over HTTP/1.1 with keep-alive, HTTPS and HTTP/2.
func TestMixedHTTP(t *testing.T) {
	body := bytes.Repeat([]byte("a body of some length "), 100_000)
	secure, trusting := certificates(t)
	trusting.ServerName = "example.com" // the tests' address may not be in the certificate
	for _, provider := range rdmatest.Providers {
		for name, tt := range map[string]struct {
			server, client *tls.Config
			major          int
		}{
			"http":   {nil, nil, 1},
			"https":  {secure, trusting, 1},
			"http/2": {secure, trusting, 2},
		} {
			t.Run(provider+" "+name, func(t *testing.T) {
				tr := new(rdmanet.Transport)
				rdmatest.Cleanly(t, tr)
				l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}, AcceptTCP: true})
				mixedServer(t, l, tt.server)
				d := &rdmanet.Dialer{Transport: tr, Providers: []string{provider}, Timeout: rdmatest.Patience}
				for network, dial := range map[string]func(context.Context, string, string) (net.Conn, error){
					"tcp": nil, "rdma": d.DialContext,
				} {
					transport := &http.Transport{DialContext: dial, TLSClientConfig: tt.client.Clone(), ForceAttemptHTTP2: tt.major == 2}
					defer transport.CloseIdleConnections()
					for i := range 3 {
						resp, reused := post(t, &http.Client{Transport: transport}, tt.client != nil, l.Addr(), body)
						assert.Equal(t, network, resp.Header.Get("Network"))
						assert.Equal(t, tt.major, resp.ProtoMajor)
						assert.Equal(t, i > 0, reused, "keep-alive")
					}
				}
			})
		}
	}
}

// post sends a body, checks that it comes back, and reports whether the connection was
// reused.
func post(t *testing.T, c *http.Client, secure bool, addr net.Addr, body []byte) (resp *http.Response, reused bool) {
	t.Helper()
	url := map[bool]string{false: "http://", true: "https://"}[secure] + addr.String()
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused },
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	require.NoError(t, err)
	resp, err = c.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, sha256.Sum256(body), sha256.Sum256(got))
	return resp, reused
}

// A client that says nothing, such as one that waits for the server to speak, is never
// accepted. Its connection is closed after HandshakeTimeout.
func TestAcceptTCPNeedsClientsThatSpeakFirst(t *testing.T) {
	const limit = 200 * time.Millisecond
	tr := simulated(t, simfabric.TCP())
	var log lockedBuffer
	l := rdmatest.Listen(t, rdmanet.ListenConfig{
		Transport: tr, AcceptTCP: true, HandshakeTimeout: limit, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	start := time.Now()
	nc, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer nc.Close()
	require.NoError(t, nc.SetReadDeadline(start.Add(rdmatest.Patience)))
	_, err = nc.Read(make([]byte, 1))
	assert.Equal(t, io.EOF, err)
	assert.GreaterOrEqual(t, time.Since(start), limit)
	require.NoError(t, l.SetDeadline(time.Now().Add(limit/4)))
	_, err = l.Accept()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	rdmatest.Eventually(t, func() bool { return tr.Stats().HandshakeFailures["timeout"] == 1 }, "it is counted")
	rdmatest.Eventually(t, func() bool { return strings.Contains(log.String(), "peer="+nc.LocalAddr().String()) }, "it is told")
}
