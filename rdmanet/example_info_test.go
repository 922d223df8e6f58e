package rdmanet_test

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// An HTTP handler finds out what its request came over.
func ExampleInfoOf() {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		addr, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		info, ok := rdmanet.InfoOf(addr)
		fmt.Fprintln(w, "over a fabric:", ok && info.Provider != "")
	})}
	go func() { _ = server.Serve(l) }()
	defer server.Close()

	client := &http.Client{Transport: &http.Transport{DialContext: new(rdmanet.Dialer).DialContext}}
	defer client.CloseIdleConnections()
	answer, err := client.Get("http://" + l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(string(text))
	// Output: over a fabric: true
}
