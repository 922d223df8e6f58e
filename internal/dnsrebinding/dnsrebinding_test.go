package dnsrebinding

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestProtect: at a loopback address a page's own name does not get in.
func TestProtect(t *testing.T) {
	h := Protect(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	get := func(host string, at net.Addr) int {
		r := httptest.NewRequestWithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, at), http.MethodGet, "/", nil)
		r.Host = host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	loopback := []net.Addr{
		&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 6060}, &net.TCPAddr{IP: net.IPv4(127, 0, 1, 1), Port: 80},
		&net.TCPAddr{IP: net.IPv6loopback, Port: 6060},
	}
	others := []net.Addr{&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 6060}, &net.UnixAddr{Name: "/run/socket"}, nil}
	for host, safe := range map[string]bool{
		"localhost": true, "localhost:6060": true, "LocalHost:6060": true, "127.0.0.1": true, "127.0.0.1:6060": true, "[::1]": true, "[::1]:6060": true,
		"192.0.2.1:8080": true, "": true,
		"evil.example": false, "evil.example:6060": false, "localhost.evil.example": false, "127.0.0.1.evil.example:6060": false,
		"127.1": false, "localhost:6060:evil": false, "[evil.example]:6060": false,
	} {
		for _, at := range loopback {
			want := http.StatusForbidden
			if safe {
				want = http.StatusOK
			}
			assert.Equal(t, want, get(host, at), "%q at %v", host, at)
		}
		for _, at := range others {
			assert.Equal(t, http.StatusOK, get(host, at), "%q at %v", host, at)
		}
	}
}
