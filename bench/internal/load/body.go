package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// bodyTime is about how long two large bodies take.
const bodyTime = time.Second

// serveBodies runs the same HTTP server over every transport until l is closed.
func serveBodies(l net.Listener, size int) (err error) {
	handler, end, err := bodyHandler(size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	s := &http.Server{Handler: handler, ReadHeaderTimeout: slack}
	if err := s.Serve(l); !errors.Is(err, net.ErrClosed) && !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return s.Close()
}

// bodyHandler answers every request with size bytes. A large body is a file, which net/http hands
// to the conn as a whole: over TCP the kernel sends it from its page cache (sendfile(2)).
func bodyHandler(size int) (handler http.HandlerFunc, end func() error, err error) {
	if size < workload.BodySize {
		body := bytes.Repeat([]byte{'x'}, size)
		return func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(body) // the client notices
		}, func() error { return nil }, nil
	}
	f, err := os.CreateTemp("", "bench-body")
	if err != nil {
		return nil, nil, err
	}
	end = func() error { return errors.Join(f.Close(), os.Remove(f.Name())) }
	if err := f.Truncate(int64(size)); err != nil {
		return nil, nil, errors.Join(err, end())
	}
	if _, err := io.Copy(io.Discard, f); err != nil { // so that no disk is measured
		return nil, nil, errors.Join(err, end())
	}
	return func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, f.Name()) }, end, nil
}

// openBodies returns a client for each conn.
func openBodies(j Job, dial dialer) ([]worker, func() error, error) {
	var clients []*http.Transport
	var workers []worker
	for range j.Conns {
		t := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return dial() }}
		clients = append(clients, t)
		workers = append(workers, fetcher(&http.Client{Transport: t}, int64(j.Size)))
	}
	return workers, func() error {
		for _, t := range clients {
			t.CloseIdleConnections()
		}
		return nil
	}, nil
}

// fetcher fetches bodies of a size one after the other, and looks at none of them.
func fetcher(client *http.Client, size int64) worker {
	buf := make([]byte, min(size+1, readSize))
	return repeat(math.MaxInt, func() error { return fetch(client, buf, size) })
}

func fetch(client *http.Client, buf []byte, size int64) error {
	r, err := client.Get("http://server/")
	if err != nil {
		return err
	}
	defer r.Body.Close()
	// Discard itself would read 8 KiB at a time.
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r.Body, buf)
	if err == nil && (r.StatusCode != http.StatusOK || n != size) {
		err = fmt.Errorf("%s with %d of %d bytes", r.Status, n, size)
	}
	return err
}
