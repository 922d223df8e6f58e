package rdmanet_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

const (
	askUpgrade   = "GET / HTTP/1.1\r\nHost: fabric\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
	grantUpgrade = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
)

// takeOver answers an upgrade with a greeting, echoes until the client has no more to say,
// and says goodbye. early is what the client has sent along with the request.
func takeOver(t *testing.T, early string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		defer func() { assert.NoError(t, c.Close()) }()
		assert.IsType(t, (*rdmanet.Conn)(nil), c)
		assert.Equal(t, len(early), rw.Reader.Buffered())
		_, err = io.WriteString(rw, grantUpgrade+"hello ")
		assert.NoError(t, err)
		assert.NoError(t, rw.Flush())
		_, err = io.Copy(c, rw)
		assert.NoError(t, err)
		_, err = io.WriteString(c, " bye")
		assert.NoError(t, err)
	}
}

// Both ends of a hijacked conn go on with raw bytes, beginning with those that either side
// has buffered, and close it one direction at a time.
func TestHTTPHijack(t *testing.T) {
	for name, early := range map[string]string{"buffered": "early ", "nothing buffered": ""} {
		t.Run(name, func(t *testing.T) {
			overEach(t, func(t *testing.T, l *rdmanet.Listener, d *rdmanet.Dialer) {
				serveHTTP(t, l, &http.Server{Handler: takeOver(t, early)})
				nc, err := d.DialContext(t.Context(), "rdma", l.Addr().String())
				require.NoError(t, err)
				c := nc.(*rdmanet.Conn)
				defer func() { assert.NoError(t, c.Close()) }()
				_, err = io.WriteString(c, askUpgrade+early)
				require.NoError(t, err)
				r := bufio.NewReader(c)
				resp, err := http.ReadResponse(r, nil)
				require.NoError(t, err)
				require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
				late := strings.Repeat("late ", 100_000)
				_, err = io.WriteString(c, late)
				require.NoError(t, err)
				require.NoError(t, c.CloseWrite())
				got, err := io.ReadAll(r)
				require.NoError(t, err)
				assert.Equal(t, "hello "+early+late+" bye", string(got))
			})
		})
	}
}

// upgraded has net/http's client ask for an upgrade, and returns the conn that it gives.
func upgraded(t *testing.T, c *http.Client, url string) io.ReadWriteCloser {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	resp, err := c.Do(req)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
	return resp.Body.(io.ReadWriteCloser)
}

// converse checks that takeOver greets, echoes and says goodbye on an upgraded conn.
func converse(t *testing.T, c io.ReadWriteCloser) {
	t.Helper()
	defer func() { assert.NoError(t, c.Close()) }()
	words := []string{"one ", strings.Repeat("two ", 50_000), "three"}
	for _, word := range words {
		_, err := io.WriteString(c, word)
		require.NoError(t, err)
	}
	require.NoError(t, c.(interface{ CloseWrite() error }).CloseWrite())
	got, err := io.ReadAll(c)
	require.NoError(t, err)
	assert.Equal(t, "hello "+strings.Join(words, "")+" bye", string(got))
}

func TestHTTPClientUpgrade(t *testing.T) {
	overEach(t, func(t *testing.T, l *rdmanet.Listener, d *rdmanet.Dialer) {
		serveHTTP(t, l, &http.Server{Handler: takeOver(t, "")})
		converse(t, upgraded(t, newHTTPClient(t, d, nil), baseURL(l)))
	})
}

// WebSocket works with a library that knows nothing of the conns below it.
func TestWebSocket(t *testing.T) {
	const most = 1 << 20
	overEach(t, func(t *testing.T, l *rdmanet.Listener, d *rdmanet.Dialer) {
		ended := make(chan error, 1)
		serveHTTP(t, l, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, err := websocket.Accept(w, r, nil)
			if !assert.NoError(t, err) {
				return
			}
			c.SetReadLimit(most)
			ended <- echoMessages(r.Context(), c)
		})})
		ctx, cancel := context.WithTimeout(t.Context(), rdmatest.Patience)
		defer cancel()
		c, resp, err := websocket.Dial(ctx, "ws://"+l.Addr().String(), &websocket.DialOptions{HTTPClient: newHTTPClient(t, d, nil)})
		require.NoError(t, err)
		defer func() { _ = c.CloseNow() }()
		assert.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
		c.SetReadLimit(most)
		for _, kind := range []websocket.MessageType{websocket.MessageText, websocket.MessageBinary} {
			for _, size := range []int{0, 1, 125, 126, 1<<16 - 1, 1 << 16, most} { // where the form of the header changes
				want := bytes.Repeat([]byte("w"), size)
				require.NoError(t, c.Write(ctx, kind, want))
				gotKind, got, err := c.Read(ctx)
				require.NoError(t, err)
				assert.Equal(t, kind, gotKind)
				assert.True(t, bytes.Equal(want, got), "%d bytes for %d", len(got), size)
			}
		}
		// Somebody must read for the pong to be seen. CloseRead would do, but then Close races with it
		// for the answer.
		ponged := make(chan error, 1)
		go func() { ponged <- c.Ping(ctx) }()
		for ping := true; ping; {
			require.NoError(t, c.Write(ctx, websocket.MessageText, nil))
			_, _, err := c.Read(ctx)
			require.NoError(t, err)
			select {
			case err := <-ponged:
				require.NoError(t, err)
				ping = false
			default:
			}
		}
		require.NoError(t, c.Close(websocket.StatusNormalClosure, "enough"))
		var closed websocket.CloseError
		require.ErrorAs(t, <-ended, &closed)
		assert.Equal(t, websocket.CloseError{Code: websocket.StatusNormalClosure, Reason: "enough"}, closed)
	})
}

func echoMessages(ctx context.Context, c *websocket.Conn) error {
	for {
		kind, text, err := c.Read(ctx)
		if err != nil {
			return err
		}
		if err := c.Write(ctx, kind, text); err != nil {
			return err
		}
	}
}
