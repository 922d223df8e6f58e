// Package rdmadebug shows what a Transport is doing: its conns, as ss(8) shows those of
// TCP, and its statistics.
//
//	http.Handle("/debug/rdma", rdmadebug.Handler(nil)) // of rdmanet.DefaultTransport
//
// What it shows, such as addresses, is not for strangers: serve it only where you would
// serve net/http/pprof.
//
// The package rdmavars, in its folder, publishes the statistics through expvar.
package rdmadebug

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/seed202c38ff/fabricnet/internal/dnsrebinding"
	"github.com/seed202c38ff/fabricnet/internal/printable"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// defaultLimit is how many conns are listed unless the request says otherwise.
const defaultLimit = 1000

// Handler returns a handler that lists the conns of t, or of rdmanet.DefaultTransport if t
// is nil, and its statistics. It answers with text, JSON or an HTML page, as the parameter
// format (text, json or html) or the Accept header asks. The parameter limit is the most
// conns that are listed, 1000 by default. The handler may be called concurrently.
//
// At a loopback address it refuses requests whose Host is neither localhost nor an IP address:
// a web page could have its own name resolved to that address, and read the answer. A reverse
// proxy on the same host that passes on another Host must set one of these.
func Handler(t *rdmanet.Transport) http.Handler { return dnsrebinding.Protect(handler(t)) }

func handler(t *rdmanet.Transport) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
			return
		}
		limit := defaultLimit
		if s := r.URL.Query().Get("limit"); s != "" {
			n, err := strconv.Atoi(s)
			if err != nil || n < 0 {
				http.Error(w, "limit must be a number of conns", http.StatusBadRequest)
				return
			}
			limit = n
		}
		write, kind := writeText, "text/plain"
		switch format(r) {
		case "text":
		case "json":
			write, kind = writeJSON, "application/json"
		case "html":
			write, kind = writeHTML, "text/html"
		default:
			http.Error(w, "format must be text, json or html", http.StatusBadRequest)
			return
		}
		var b bytes.Buffer
		if err := write(&b, look(t, limit)); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		h := w.Header()
		h.Set("Fabricnet-Debug", "1") // tells fabricnet ss who answers
		h.Set("Content-Type", kind+"; charset=utf-8")
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		h.Set("Vary", "Accept")
		_, _ = w.Write(b.Bytes()) // an error means that the client has gone
	}
}

// format returns the format that a request asks for. curl, which accepts anything, gets text.
func format(r *http.Request) string {
	if f := r.URL.Query().Get("format"); f != "" {
		return f
	}
	accept := strings.Join(r.Header.Values("Accept"), ",")
	for _, f := range [][2]string{{"text/html", "html"}, {"application/json", "json"}} {
		if strings.Contains(accept, f[0]) {
			return f[1]
		}
	}
	return "text"
}

func writeJSON(b *bytes.Buffer, p *page) error {
	text, err := json.MarshalIndent(p, "", "  ")
	if err == nil {
		b.Write(append(printable.JSON(text), '\n'))
	}
	return err
}
