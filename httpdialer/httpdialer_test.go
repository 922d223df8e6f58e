//go:build linux && cgo

package httpdialer_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/httpdialer"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// told answers with the protocol and the network that a request came by.
var told = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	local := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	network := "tcp"
	if info, ok := rdmanet.InfoOf(local); ok && info.Provider != "" {
		network = "rdma"
	}
	fmt.Fprint(w, r.Proto, " over ", network)
})

// served starts a server at a port that was free, and waits until it listens. The functions
// under test run until the process ends.
func served(t *testing.T, listen func(addr string) error) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr = l.Addr().String()
	require.NoError(t, l.Close())
	failed := make(chan error, 1)
	go func() { failed <- listen(addr) }()
	for deadline := time.Now().Add(20 * time.Second); ; {
		select {
		case err := <-failed:
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
		if c, err := net.Dial("tcp", addr); err == nil {
			require.NoError(t, c.Close())
			return addr
		}
		require.True(t, time.Now().Before(deadline), "nobody listens")
	}
}

func get(t *testing.T, tr *http.Transport, url string) string {
	t.Helper()
	defer tr.CloseIdleConnections()
	client := http.Client{Transport: tr, Timeout: 20 * time.Second}
	r, err := client.Get(url)
	require.NoError(t, err)
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return string(body)
}

func TestHTTP(t *testing.T) {
	addr := served(t, func(addr string) error { return httpdialer.ListenAndServe(addr, told) })
	assert.Equal(t, "HTTP/1.1 over rdma", get(t, httpdialer.Transport(nil), "http://"+addr))

	tr := new(rdmanet.Transport)
	defer tr.Close()
	assert.Equal(t, "HTTP/1.1 over rdma", get(t, httpdialer.Transport(&rdmanet.Dialer{Transport: tr}), "http://"+addr))
	assert.NotZero(t, tr.Stats().Peers, "the Dialer that was given has been used")
}

// TestTLS: the two sides agree on HTTP/2, as over TCP.
func TestTLS(t *testing.T) {
	certFile, keyFile, pool := certificate(t)
	addr := served(t, func(addr string) error { return httpdialer.ListenAndServeTLS(addr, certFile, keyFile, told) })
	tr := httpdialer.Transport(nil)
	tr.TLSClientConfig = &tls.Config{RootCAs: pool}
	assert.Equal(t, "HTTP/2.0 over rdma", get(t, tr, "https://"+addr))
}

// certificate returns that of package httptest, which is for loopback and signs itself.
func certificate(t *testing.T) (certFile, keyFile string, pool *x509.CertPool) {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	secret, err := x509.MarshalPKCS8PrivateKey(server.TLS.Certificates[0].PrivateKey)
	require.NoError(t, err)
	save := func(name, kind string, der []byte) string {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	pool = x509.NewCertPool()
	pool.AddCert(server.Certificate())
	return save("cert.pem", "CERTIFICATE", server.Certificate().Raw), save("key.pem", "PRIVATE KEY", secret), pool
}

// TestTransport: all settings are those of the default transport, except for the dialing.
func TestTransport(t *testing.T) {
	was := http.DefaultTransport
	defer func() { http.DefaultTransport = was }()
	own := was.(*http.Transport).Clone()
	own.MaxIdleConnsPerHost = 7
	own.DialTLSContext = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("the default's") }
	for name, def := range map[string]http.RoundTripper{"default": was, "changed": own, "replaced": http.NewFileTransport(nil)} {
		t.Run(name, func(t *testing.T) {
			http.DefaultTransport = def
			tr := httpdialer.Transport(nil)
			assert.True(t, tr.ForceAttemptHTTP2)
			assert.Equal(t, 90*time.Second, tr.IdleConnTimeout)
			assert.NotNil(t, tr.Proxy)
			assert.Nil(t, tr.DialTLSContext)
			if name == "changed" {
				assert.Equal(t, 7, tr.MaxIdleConnsPerHost)
				assert.NotNil(t, own.DialTLSContext, "the default stays as it is")
			}
			_, err := tr.DialContext(t.Context(), "tcp", "127.0.0.1:1")
			var op *net.OpError
			require.ErrorAs(t, err, &op)
			assert.Equal(t, "rdma", op.Net)
		})
	}
}

func TestListenFails(t *testing.T) {
	for name, listen := range map[string]func(addr string) error{
		"plain": func(addr string) error { return httpdialer.ListenAndServe(addr, nil) },
		"TLS":   func(addr string) error { return httpdialer.ListenAndServeTLS(addr, "", "", nil) },
	} {
		t.Run(name, func(t *testing.T) {
			var op *net.OpError
			require.ErrorAs(t, listen("192.0.2.1:80"), &op, "an address of another host's")
			assert.Equal(t, "listen", op.Op)
		})
	}
	assert.Error(t, httpdialer.ListenAndServeTLS("127.0.0.1:0", "no such file", "no such file", nil))
}
