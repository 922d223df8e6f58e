package rdmanet_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// overEach gives a test a listener and a dialer over each personality and each real
// provider. After rdmatest.Patience it closes both Transports, which ends whatever the test
// waits for.
func overEach(t *testing.T, test func(t *testing.T, l *rdmanet.Listener, d *rdmanet.Dialer)) {
	t.Helper()
	over := func(t *testing.T, providers []string, server, client *rdmanet.Transport) {
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: server, Providers: providers})
		limit := time.AfterFunc(rdmatest.Patience, func() {
			t.Errorf("not over after %v", rdmatest.Patience)
			assert.NoError(t, client.Close())
			assert.NoError(t, server.Close())
		})
		t.Cleanup(func() { limit.Stop() })
		test(t, l, &rdmanet.Dialer{Transport: client, Providers: providers})
	}
	onPersonalities(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) { over(t, providers, tr, tr) })
	for _, provider := range rdmatest.Providers {
		t.Run(provider, func(t *testing.T) {
			server, client := new(rdmanet.Transport), new(rdmanet.Transport)
			rdmatest.Cleanly(t, server)
			t.Cleanup(func() { assert.NoError(t, client.Close()) }) // before rdmatest.Cleanly looks for what is left
			over(t, []string{provider}, server, client)
		})
	}
}

// serveHTTP runs an HTTP server on l until the end of the test.
func serveHTTP(t *testing.T, l net.Listener, srv *http.Server) {
	t.Helper()
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() {
		assert.NoError(t, srv.Close())
		assert.ErrorIs(t, <-served, http.ErrServerClosed)
	})
}

// newHTTPClient returns an HTTP client that dials with d, over HTTP/1.1 unless protocols
// says otherwise.
func newHTTPClient(t *testing.T, d *rdmanet.Dialer, protocols *http.Protocols) *http.Client {
	t.Helper()
	tr := &http.Transport{DialContext: d.DialContext, Protocols: protocols}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// onlyH2C returns HTTP/2 without TLS as the only protocol.
func onlyH2C() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}

func baseURL(l net.Listener) string { return "http://" + l.Addr().String() }

// traced makes a request and reads the whole answer. It also returns the conn that they
// went over.
func traced(t *testing.T, c *http.Client, req *http.Request) (resp *http.Response, body []byte, over httptrace.GotConnInfo) {
	t.Helper()
	resp, err := c.Do(req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { over = info },
	})))
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, body, over
}

// connStates counts how many of a server's conns have reached each state.
type connStates [http.StateClosed + 1]atomic.Int64

func (n *connStates) note(_ net.Conn, s http.ConnState) { n[s].Add(1) }

func echoBody(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }

// Requests with bodies of all kinds share one conn until one of them asks for its end.
func TestHTTPKeepAlive(t *testing.T) {
	large := bytes.Repeat([]byte("0123456789abcdef"), 20_000)
	overEach(t, func(t *testing.T, l *rdmanet.Listener, d *rdmanet.Dialer) {
		var conns connStates
		serveHTTP(t, l, &http.Server{ConnState: conns.note, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body) // over HTTP/1.1, the answer comes only after that
			assert.NoError(t, err)
			_, err = w.Write(body)
			assert.NoError(t, err)
		})})
		client := newHTTPClient(t, d, nil)
		var first uint64
		for i, tt := range []struct {
			name string
			body io.Reader
			want []byte
			last bool // Connection: close
		}{
			{"none", nil, []byte{}, false},
			{"a byte", strings.NewReader("x"), []byte("x"), false},
			{"large", bytes.NewReader(large), large, false},
			{"chunked", struct{ io.Reader }{bytes.NewReader(large)}, large, false},
			{"last", strings.NewReader("bye"), []byte("bye"), true},
		} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, baseURL(l), tt.body)
			require.NoError(t, err)
			req.Close = tt.last
			_, body, over := traced(t, client, req)
			assert.True(t, bytes.Equal(tt.want, body), tt.name)
			assert.Equal(t, i > 0, over.Reused, tt.name)
			id := over.Conn.(*rdmanet.Conn).Info().ID
			if i == 0 {
				first = id
			}
			assert.Equal(t, first, id, tt.name)
		}
		assert.EqualValues(t, 1, conns[http.StateNew].Load())
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, baseURL(l), nil)
		require.NoError(t, err)
		_, _, over := traced(t, client, req)
		assert.False(t, over.Reused, "after Connection: close")
		assert.EqualValues(t, 2, conns[http.StateNew].Load())
	})
}

// A server may close a conn that has been idle for too long. The client's next request then
// goes over another one, and its caller does not notice.
func TestHTTPIdleTimeout(t *testing.T) {
	overEach(t, func(t *testing.T, l *rdmanet.Listener, d *rdmanet.Dialer) {
		var conns connStates
		serveHTTP(t, l, &http.Server{ConnState: conns.note, IdleTimeout: time.Millisecond, Handler: http.HandlerFunc(echoBody)})
		client := newHTTPClient(t, d, nil)
		for i := range int64(3) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, baseURL(l), nil)
			require.NoError(t, err)
			resp, _, _ := traced(t, client, req)
			assert.Equal(t, http.StatusOK, resp.StatusCode)
			rdmatest.Eventually(t, func() bool { return conns[http.StateClosed].Load() > i }, "the server closes the conn")
		}
	})
}

// A client that gives up ends its request's context in the server, which watches the
// conn while the handler runs.
func TestHTTPCancel(t *testing.T) {
	overEach(t, func(t *testing.T, l *rdmanet.Listener, d *rdmanet.Dialer) {
		started, canceled := make(chan struct{}), make(chan error)
		serveHTTP(t, l, &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			close(started)
			<-r.Context().Done()
			canceled <- r.Context().Err()
		})})
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, baseURL(l), nil)
		require.NoError(t, err)
		go func() {
			<-started
			cancel()
		}()
		_, err = newHTTPClient(t, d, nil).Do(req)
		assert.ErrorIs(t, err, context.Canceled)
		assert.ErrorIs(t, <-canceled, context.Canceled)
	})
}

// Shutdown lets the requests in flight finish, and lets no new conn in.
func TestHTTPShutdown(t *testing.T) {
	const inFlight = 8
	half := bytes.Repeat([]byte("half of it"), 50_000)
	for name, protocols := range map[string]*http.Protocols{"http/1.1": nil, "h2c": onlyH2C()} {
		t.Run(name, func(t *testing.T) {
			overEach(t, func(t *testing.T, l *rdmanet.Listener, d *rdmanet.Dialer) {
				var started sync.WaitGroup
				started.Add(inFlight)
				closed, proceed := make(chan struct{}), make(chan struct{})
				srv := &http.Server{Protocols: protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					_, err := w.Write(half)
					assert.NoError(t, err)
					started.Done()
					<-proceed
					_, err = w.Write(half)
					assert.NoError(t, err)
				})}
				srv.RegisterOnShutdown(func() { close(closed) }) // called once the listeners are closed
				serveHTTP(t, l, srv)
				client := newHTTPClient(t, d, protocols)
				var requests sync.WaitGroup
				for range inFlight {
					requests.Go(func() {
						resp, err := client.Get(baseURL(l))
						if !assert.NoError(t, err) {
							return
						}
						defer resp.Body.Close()
						body, err := io.ReadAll(resp.Body)
						assert.NoError(t, err)
						assert.True(t, bytes.Equal(append(half[:len(half):len(half)], half...), body))
					})
				}
				started.Wait()
				shut := make(chan error, 1)
				go func() { shut <- srv.Shutdown(t.Context()) }()
				<-closed
				// The peer process is known, so this dial goes over the fabric.
				_, err := d.DialContext(t.Context(), "rdma", l.Addr().String())
				assert.ErrorIs(t, err, syscall.ECONNREFUSED)
				alone := *d
				alone.DisableReuse = true // and this one over TCP
				_, err = alone.DialContext(t.Context(), "rdma", l.Addr().String())
				assert.ErrorIs(t, err, syscall.ECONNREFUSED)
				select {
				case err := <-shut:
					assert.Fail(t, "Shutdown does not wait", "%v", err)
				default:
				}
				close(proceed)
				requests.Wait()
				assert.NoError(t, <-shut)
			})
		})
	}
}

// HTTP/2 without TLS works: many requests at once on one conn, and an answer that comes while
// its request is still being sent.
func TestHTTP2Cleartext(t *testing.T) {
	body := bytes.Repeat([]byte("0123456789abcdef"), 10_000)
	overEach(t, func(t *testing.T, l *rdmanet.Listener, d *rdmanet.Dialer) {
		var conns connStates
		serveHTTP(t, l, &http.Server{Protocols: onlyH2C(), ConnState: conns.note, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.Equal(t, 2, r.ProtoMajor)
			assert.NoError(t, http.NewResponseController(w).Flush())
			for buf := make([]byte, 32<<10); ; {
				n, err := r.Body.Read(buf)
				_, werr := w.Write(buf[:n])
				if assert.NoError(t, werr); err == io.EOF {
					return
				}
				assert.NoError(t, err)
				assert.NoError(t, http.NewResponseController(w).Flush())
			}
		})})
		client := newHTTPClient(t, d, onlyH2C())
		// net/http puts a new HTTP/2 conn into its pool only after its first request has it,
		// and would dial more for requests in between. (Over TCP it does that, too.)
		client.Transport.(*http.Transport).MaxConnsPerHost = 1

		text, send := io.Pipe()
		resp, err := client.Post(baseURL(l), "text/plain", text)
		require.NoError(t, err)
		defer resp.Body.Close()
		for _, word := range []string{"one", "two", "three"} {
			_, err := io.WriteString(send, word)
			require.NoError(t, err)
			got := make([]byte, len(word))
			_, err = io.ReadFull(resp.Body, got)
			require.NoError(t, err)
			assert.Equal(t, word, string(got))
		}
		require.NoError(t, send.Close())
		_, err = resp.Body.Read(make([]byte, 1))
		assert.Equal(t, io.EOF, err)

		var requests sync.WaitGroup
		for range 50 {
			requests.Go(func() {
				resp, err := client.Post(baseURL(l), "text/plain", bytes.NewReader(body))
				if !assert.NoError(t, err) {
					return
				}
				defer resp.Body.Close()
				sum := sha256.New()
				_, err = io.Copy(sum, resp.Body)
				assert.NoError(t, err)
				want := sha256.Sum256(body)
				assert.Equal(t, want[:], sum.Sum(nil))
			})
		}
		requests.Wait()
		assert.EqualValues(t, 1, conns[http.StateNew].Load())
	})
}

// httptest's server takes our listener, too, and can then cut its clients off in the middle
// of an answer.
func TestHTTPTestServer(t *testing.T) {
	overEach(t, func(t *testing.T, l *rdmanet.Listener, d *rdmanet.Dialer) {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, err := io.WriteString(w, "hello")
			assert.NoError(t, err)
			if r.URL.Path == "/endless" {
				assert.NoError(t, http.NewResponseController(w).Flush())
				<-r.Context().Done()
			}
		}))
		require.NoError(t, s.Listener.Close())
		s.Listener = l
		s.Start()
		defer s.Close()
		assert.Equal(t, baseURL(l), s.URL)
		s.Client().Transport.(*http.Transport).DialContext = d.DialContext
		resp, err := s.Client().Get(s.URL)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, "hello", string(body))

		resp, err = s.Client().Get(s.URL + "/endless")
		require.NoError(t, err)
		defer resp.Body.Close()
		_, err = io.ReadFull(resp.Body, make([]byte, len("hello")))
		require.NoError(t, err)
		s.CloseClientConnections()
		_, err = resp.Body.Read(make([]byte, 1))
		assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
	})
}
