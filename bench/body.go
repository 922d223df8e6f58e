package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"time"
)

// bodySize is how long a body is in the mode http, in bytes.
const bodySize = 1 << 30

// bodyTime is about how long two bodies take.
const bodyTime = time.Second

// serveBodies runs the same HTTP server over every transport until l is closed. It serves a
// file, which net/http hands to the conn as a whole: over TCP the kernel sends it from its
// own cache (sendfile(2)).
func serveBodies(l net.Listener) (err error) {
	f, err := os.CreateTemp("", "bench-body")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	if err := f.Truncate(bodySize); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, f); err != nil { // no disk is measured
		return err
	}
	s := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, f.Name()) }),
		ReadHeaderTimeout: slack,
	}
	if err := s.Serve(l); !errors.Is(err, net.ErrClosed) && !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return s.Close()
}

// openBodies returns a client for every conn.
func openBodies(j job, dial dialer) ([]worker, func() error, error) {
	var clients []*http.Transport
	var workers []worker
	for range j.Conns {
		t := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return dial() }}
		clients = append(clients, t)
		workers = append(workers, fetcher(&http.Client{Transport: t}))
	}
	return workers, func() error {
		for _, t := range clients {
			t.CloseIdleConnections()
		}
		return nil
	}, nil
}

// fetcher fetches one body after the other and looks at none of it.
func fetcher(client *http.Client) worker {
	buf := make([]byte, readSize)
	return repeat(math.MaxInt, func() error { return fetch(client, buf) })
}

func fetch(client *http.Client, buf []byte) error {
	r, err := client.Get("http://server/")
	if err != nil {
		return err
	}
	defer r.Body.Close()
	// What Discard would read with is 8 KiB.
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r.Body, buf)
	if err == nil && (r.StatusCode != http.StatusOK || n != bodySize) {
		err = fmt.Errorf("%s with %d of %d bytes", r.Status, n, bodySize)
	}
	return err
}
