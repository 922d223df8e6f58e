//go:build linux && cgo

package httpdialer_test

import (
	"fmt"
	"log"
	"net/http"

	"github.com/seed202c38ff/fabricnet/httpdialer"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// A client's conns come from a Dialer that has settings.
func ExampleTransport() {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	})}
	go func() { _ = server.Serve(l) }() // until Close
	defer server.Close()

	tr := httpdialer.Transport(&rdmanet.Dialer{Providers: []string{"shm"}})
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr}
	r, err := client.Get("http://" + l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer r.Body.Close()
	fmt.Println(r.Status)
	// Output: 204 No Content
}
