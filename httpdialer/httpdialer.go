// Package httpdialer runs net/http over fabrics: a server and a client move by one line
// each.
//
//	httpdialer.ListenAndServe(":8080", handler)                    // was http.ListenAndServe
//	client := &http.Client{Transport: httpdialer.Transport(nil)}   // was http.DefaultClient
//
// It is a thin layer over rdmanet, for the common case. A server that needs more, such as an
// http.Server with time-outs and Shutdown, or plain TCP clients on the same port, is given a
// listener of rdmanet's: server.Serve(l).
package httpdialer

import (
	"net"
	"net/http"
	"time"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// Transport returns a new http.Transport whose conns d dials. If d is nil, a Dialer with
// the time-out of http.DefaultTransport's, 30 seconds, is used.
//
// All other settings are those of http.DefaultTransport: HTTP/2 where TLS agrees on it, the
// proxies that the environment names, and time-outs. A proxy is dialed over the fabric, too:
// where the environment names one that is not on it, set Proxy to nil. The caller may change
// the Transport before its first use, and closes its conns with CloseIdleConnections.
func Transport(d *rdmanet.Dialer) *http.Transport {
	if d == nil {
		d = &rdmanet.Dialer{Timeout: 30 * time.Second}
	}
	t, ok := http.DefaultTransport.(*http.Transport)
	if ok {
		t = t.Clone()
	} else { // the program has replaced it
		t = &http.Transport{
			Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, MaxIdleConns: 100,
			IdleConnTimeout: 90 * time.Second, TLSHandshakeTimeout: 10 * time.Second, ExpectContinueTimeout: time.Second,
		}
	}
	// The program may have set these in the default one, and they have precedence.
	t.Dial, t.DialTLS, t.DialTLSContext = nil, nil, nil //nolint:staticcheck // the deprecated ones, too
	t.DialContext = d.DialContext
	return t
}

// ListenAndServe is http.ListenAndServe over a fabric: it listens at addr, ":http" if that
// is empty, with the zero rdmanet.ListenConfig, and serves handler, http.DefaultServeMux if
// that is nil. Plain TCP clients cannot connect; the bytes are clear text. It returns only if
// listening or accepting fails, always with an error.
func ListenAndServe(addr string, handler http.Handler) error {
	l, err := listen(addr, ":http")
	if err != nil {
		return err
	}
	defer l.Close()
	return http.Serve(l, handler)
}

// ListenAndServeTLS is http.ListenAndServeTLS over a fabric: ListenAndServe, with TLS above
// the conns, so that what crosses the fabric is encrypted. addr is ":https" if it is empty.
// The files are in PEM; certFile may hold intermediate certificates after the server's.
func ListenAndServeTLS(addr, certFile, keyFile string, handler http.Handler) error {
	l, err := listen(addr, ":https")
	if err != nil {
		return err
	}
	defer l.Close()
	return http.ServeTLS(l, handler, certFile, keyFile)
}

func listen(addr, standard string) (net.Listener, error) {
	if addr == "" {
		addr = standard
	}
	return rdmanet.Listen("rdma", addr)
}
