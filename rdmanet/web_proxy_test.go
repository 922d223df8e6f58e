package rdmanet_test

import (
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestReverseProxy: clients on TCP reach a backend on the fabric through net/http's reverse
// proxy.
func TestReverseProxy(t *testing.T) {
	overEach(t, func(t *testing.T, l *rdmanet.Listener, d *rdmanet.Dialer) {
		heard := make(chan struct{})
		mux := http.NewServeMux()
		mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
			assert.Equal(t, "127.0.0.1", r.Header.Get("X-Forwarded-For"))
			body, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			_, err = w.Write(body)
			assert.NoError(t, err)
		})
		mux.HandleFunc("/events", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, err := io.WriteString(w, "data: one\n\n")
			assert.NoError(t, err)
			assert.NoError(t, http.NewResponseController(w).Flush())
			<-heard
			_, err = io.WriteString(w, "data: two\n\n")
			assert.NoError(t, err)
		})
		mux.HandleFunc("/upgrade", takeOver(t, ""))
		srv := &http.Server{Handler: mux}
		serveHTTP(t, l, srv)

		backend, err := url.Parse(baseURL(l))
		require.NoError(t, err)
		var complaints lockedBuffer
		proxy := &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(backend)
				r.SetXForwarded()
			},
			Transport: newHTTPClient(t, d, nil).Transport,
			ErrorLog:  log.New(&complaints, "", 0),
		}
		// Otherwise the server closes the request's body as soon as the answer begins, while
		// net/http's client may still be checking whether the body has ended. That cuts the
		// answer off, over any transport: golang/go#40747.
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.NoError(t, http.NewResponseController(w).EnableFullDuplex())
			proxy.ServeHTTP(w, r)
		}))
		defer front.Close()
		client := front.Client()

		want := bytes.Repeat([]byte("0123456789abcdef"), 200_000)
		resp, err := client.Post(front.URL+"/echo", "text/plain", bytes.NewReader(want))
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.True(t, bytes.Equal(want, body))

		resp, err = client.Get(front.URL + "/events")
		require.NoError(t, err)
		first := make([]byte, len("data: one\n\n"))
		_, err = io.ReadFull(resp.Body, first) // comes before the backend is done
		require.NoError(t, err)
		close(heard)
		rest, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, "data: one\n\ndata: two\n\n", string(first)+string(rest))

		converse(t, upgraded(t, client, front.URL+"/upgrade"))

		require.NoError(t, srv.Close())
		resp, err = client.Get(front.URL + "/echo")
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, http.StatusBadGateway, resp.StatusCode)
		assert.Contains(t, complaints.String(), "connection refused")
	})
}
