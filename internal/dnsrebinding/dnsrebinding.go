// Package dnsrebinding keeps web pages from what is served at loopback addresses. A page can have its
// own name resolved to such an address, and then read what is there as if it were its own site's
// (DNS rebinding). The browser still sends the page's name as Host.
package dnsrebinding

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Protect returns a handler that refuses requests to a loopback address whose Host is neither localhost
// nor an IP address. It passes on those to other addresses, which others can reach without a browser's
// help, too.
func Protect(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if atLoopback(r) && !safe(r.Host) {
			http.Error(w, "this is served at a loopback address: ask for localhost or an IP address, and not for another name", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// atLoopback reports whether a request has come in at a loopback address.
func atLoopback(r *http.Request) bool {
	a, ok := r.Context().Value(http.LocalAddrContextKey).(interface{ AddrPort() netip.AddrPort })
	return ok && a.AddrPort().Addr().Unmap().IsLoopback()
}

// safe reports whether no page has that host for a name. Without one the client is no browser.
func safe(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	_, err := netip.ParseAddr(host)
	return err == nil || host == "" || strings.EqualFold(host, "localhost")
}
