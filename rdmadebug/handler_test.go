package rdmadebug_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmadebug"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// connected returns a Transport, and both ends of a conn that it has over the first provider.
func connected(t *testing.T) (tr *rdmanet.Transport, client, server net.Conn) {
	t.Helper()
	tr = new(rdmanet.Transport)
	t.Cleanup(func() { assert.NoError(t, tr.Close()) })
	provider := testenv.Providers()[:1]
	lc := rdmanet.ListenConfig{Transport: tr, Providers: provider}
	l, err := lc.Listen(t.Context(), "rdma", testenv.Address())
	require.NoError(t, err)
	client, err = (&rdmanet.Dialer{Transport: tr, Providers: provider}).Dial("rdma", l.Addr().String())
	require.NoError(t, err)
	server, err = l.Accept()
	require.NoError(t, err)
	require.NoError(t, l.Close())
	_, err = client.Write([]byte("hello"))
	require.NoError(t, err)
	_, err = io.ReadFull(server, make([]byte, 5))
	require.NoError(t, err)
	return tr, client, server
}

func get(t *testing.T, h http.Handler, method, url, accept string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, url, nil)
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestHandler(t *testing.T) {
	tr, client, server := connected(t)
	h := rdmadebug.Handler(tr)
	const browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
	for _, tt := range []struct {
		url, accept, kind, has string
	}{
		{"/", "", "text/plain", "STATE"},
		{"/", "*/*", "text/plain", "STATE"},
		{"/", browser, "text/html", "<td>" + client.LocalAddr().String() + "</td>"},
		{"/", "application/json", "application/json", `"local": "` + client.LocalAddr().String() + `"`},
		{"/?format=json", browser, "application/json", `"phase": "open"`},
		{"/?format=text", browser, "text/plain", client.LocalAddr().String()},
		{"/?format=html", "", "text/html", "<!DOCTYPE html>"},
		{"/?limit=1", "", "text/plain", "and 1 more"},
	} {
		t.Run(tt.url+" "+tt.accept, func(t *testing.T) {
			w := get(t, h, http.MethodGet, tt.url, tt.accept)
			assert.Equal(t, http.StatusOK, w.Code)
			assert.Equal(t, tt.kind+"; charset=utf-8", w.Header().Get("Content-Type"))
			assert.Contains(t, w.Header().Get("Content-Security-Policy"), "default-src 'none'")
			assert.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
			assert.Equal(t, "no-store", w.Header().Get("Cache-Control"))
			assert.Contains(t, w.Body.String(), tt.has)
			assert.Contains(t, w.Body.String(), "fabricnet.sent")
		})
	}
	for _, bad := range []string{"/?format=xml", "/?limit=-1", "/?limit=many"} {
		assert.Equal(t, http.StatusBadRequest, get(t, h, http.MethodGet, bad, "").Code, bad)
	}
	assert.Equal(t, http.StatusMethodNotAllowed, get(t, h, http.MethodPost, "/", "").Code)
	assert.Equal(t, http.StatusOK, get(t, h, http.MethodHead, "/", "").Code)

	var page struct {
		Conns []struct {
			Phase, Remote, Provider string
			Dialed                  bool
			Sent, Received          int
		}
	}
	require.NoError(t, json.Unmarshal(get(t, h, http.MethodGet, "/?format=json", "").Body.Bytes(), &page))
	require.Len(t, page.Conns, 2)
	for _, c := range page.Conns {
		assert.Equal(t, testenv.Providers()[0], c.Provider)
		assert.Equal(t, c.Dialed, c.Sent == 5)
		assert.Equal(t, !c.Dialed, c.Received == 5)
		assert.Equal(t, "open", c.Phase)
	}
	closed := make(chan error, 1)
	go func() { closed <- server.Close() }()
	require.NoError(t, client.Close())
	require.NoError(t, <-closed)
	assert.Contains(t, get(t, h, http.MethodGet, "/", browser).Body.String(), "None are open.")
	require.NoError(t, json.Unmarshal(get(t, h, http.MethodGet, "/?format=json", "").Body.Bytes(), &page))
	assert.Empty(t, page.Conns)
}

// TestOtherHosts: a web page whose name is resolved to this host's loopback address reads nothing.
func TestOtherHosts(t *testing.T) {
	tr := new(rdmanet.Transport)
	defer tr.Close()
	mux := http.NewServeMux()
	mux.Handle("/debug/rdma", rdmadebug.Handler(tr))
	srv := httptest.NewServer(mux)
	defer srv.Close()
	for host, want := range map[string]int{"evil.example": http.StatusForbidden, "localhost": http.StatusOK, "": http.StatusOK} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/debug/rdma", nil)
		require.NoError(t, err)
		r.Host = host // if it is empty, that of the URL
		resp, err := srv.Client().Do(r)
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, want, resp.StatusCode, host)
		assert.Equal(t, want == http.StatusOK, strings.Contains(string(text), "STATE"), host)
	}
}

// TestNoExpvar: a program that imports this package does not get /debug/vars.
func TestNoExpvar(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	deps := strings.Fields(string(out))
	assert.Contains(t, deps, "net/http")
	assert.NotContains(t, deps, "expvar")
}

func ExampleHandler() {
	mux := http.NewServeMux()
	mux.Handle("/debug/rdma", rdmadebug.Handler(nil)) // of rdmanet.DefaultTransport
	srv := httptest.NewServer(mux)                    // a service listens where only operators get in
	defer srv.Close()

	resp, err := http.Get(srv.URL + "/debug/rdma?format=json")
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	var page struct {
		Conns []struct{ Phase, Remote string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(page.Conns), "conns")
	// Output: 0 conns
}
