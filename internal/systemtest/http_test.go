package systemtest

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

var httpSize = flag.Int64("http.size", 32<<20, "bytes of the file that TestHTTPFile serves")

// TestHTTPFile serves a file with net/http to 32 clients at a time.
func TestHTTPFile(t *testing.T) {
	const clients = 32
	name := filepath.Join(t.TempDir(), "file")
	want := rdmatest.WriteRandom(t, name, *httpSize)
	for _, provider := range rdmatest.Providers {
		t.Run(provider, func(t *testing.T) {
			server, client := new(rdmanet.Transport), new(rdmanet.Transport)
			rdmatest.Cleanly(t, server)
			t.Cleanup(func() { assert.NoError(t, client.Close()) }) // before rdmatest.Cleanly looks for what is left
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: server, Providers: []string{provider}})
			srv := &http.Server{
				Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, name) }),
				ReadHeaderTimeout: rdmatest.Patience,
			}
			served := make(chan error, 1)
			go func() { served <- srv.Serve(l) }()
			d := &rdmanet.Dialer{Transport: client, Providers: []string{provider}}
			var wg sync.WaitGroup
			start := time.Now()
			for range clients {
				wg.Go(func() {
					tr := &http.Transport{DialContext: d.DialContext}
					defer tr.CloseIdleConnections()
					resp, err := (&http.Client{Transport: tr}).Get("http://" + l.Addr().String() + "/")
					if !assert.NoError(t, err) {
						return
					}
					defer resp.Body.Close()
					sum := sha256.New()
					n, err := io.Copy(sum, resp.Body)
					assert.NoError(t, err)
					assert.Equal(t, *httpSize, n)
					assert.Equal(t, want, sum.Sum(nil), "hash")
				})
			}
			wg.Wait()
			took := time.Since(start)
			t.Logf("%d clients, %d bytes each, hashed: %v, %.2f GB/s in all",
				clients, *httpSize, took.Round(time.Millisecond), float64(clients**httpSize)/took.Seconds()/1e9)
			require.NoError(t, srv.Close())
			require.ErrorIs(t, <-served, http.ErrServerClosed)
		})
	}
}

// TestTLSAbove runs crypto/tls above the conns, with a certificate on each side.
func TestTLSAbove(t *testing.T) {
	for _, provider := range rdmatest.Providers {
		t.Run(provider, func(t *testing.T) {
			tr := new(rdmanet.Transport)
			rdmatest.Cleanly(t, tr)
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}})
			body := make([]byte, 3<<20)
			srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				assert.Len(t, r.TLS.PeerCertificates, 1)
				_, err := io.Copy(w, r.Body)
				assert.NoError(t, err)
			}))
			_ = srv.Listener.Close()
			srv.Listener = l
			srv.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
			srv.StartTLS()
			defer srv.Close()
			client := srv.Client()
			transport := client.Transport.(*http.Transport)
			transport.TLSClientConfig.Certificates = srv.TLS.Certificates
			transport.TLSClientConfig.ServerName = "example.com" // the name in httptest's certificate
			d := &rdmanet.Dialer{Transport: tr, Providers: []string{provider}}
			transport.DialContext = d.DialContext
			resp, err := client.Post(srv.URL, "application/octet-stream", bytes.NewReader(body))
			require.NoError(t, err)
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.True(t, bytes.Equal(body, got))
		})
	}
}
