package rdmanet_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// A side of this package sends only what is printable. So the connection makes something else of
// what the other side chooses.
const (
	harmless = "CHOSEN-BY-PEER"
	hostile  = "a\x1b[2J\nb\u202ec\u009b\xff"
	shown    = "a?[2J?b?c??"
)

// forger is the listener's control connection, which changes what either side says.
type forger struct{ net.Conn }

func forge(b []byte) []byte { return bytes.ReplaceAll(b, []byte(harmless), []byte(hostile)) }

func (f forger) Write(b []byte) (int, error) { return f.Conn.Write(forge(b)) }

func (f forger) Read(b []byte) (int, error) {
	n, err := f.Conn.Read(b)
	copy(b, forge(b[:n]))
	return n, err
}

// rawLog keeps what a Handler gets, before that quotes anything.
type rawLog struct {
	mu   sync.Mutex // guards text
	text string
}

func (l *rawLog) Enabled(context.Context, slog.Level) bool { return true }
func (l *rawLog) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *rawLog) WithGroup(string) slog.Handler            { return l }

func (l *rawLog) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text += r.Message
	r.Attrs(func(a slog.Attr) bool {
		l.text += " " + a.Key + "=" + a.Value.String()
		return true
	})
	return nil
}

func (l *rawLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text
}

func isShown(t *testing.T, text string) {
	t.Helper()
	assert.Contains(t, text, shown)
	for _, r := range text {
		assert.True(t, unicode.IsPrint(r), "%q in %q", r, text)
	}
}

// TestHostileTexts: whatever a peer writes into a text, it cannot do anything to a terminal or a log.
func TestHostileTexts(t *testing.T) {
	require.Len(t, hostile, len(harmless), "lengths stay right")
	type ends struct {
		here, there *rdmanet.Transport
		logs        [2]rawLog // of the dialing and the listening side
		listener    rdmanet.ListenConfig
		dialer      rdmanet.Dialer
	}
	run := func(t *testing.T, change func(*ends), hosts ...string) (e *ends, c, s *rdmanet.Conn, err error) {
		t.Helper()
		n := simfabric.New(simfabric.Config{Personality: simfabric.Shm(), Others: []simfabric.Personality{simfabric.TCP()}})
		e = &ends{here: rdmanet.NewTransport(n), there: rdmanet.NewTransport(n)}
		rdmatest.Cleanly(t, e.here)
		t.Cleanup(func() { e.there.Close() })
		e.listener = rdmanet.ListenConfig{Transport: e.there, Logger: slog.New(&e.logs[1])}
		e.dialer = rdmanet.Dialer{Transport: e.here, Logger: slog.New(&e.logs[0])}
		change(e)
		l, err := e.listener.ListenOn(wrapped{tcpListener(t), func(c net.Conn) net.Conn { return forger{c} }})
		require.NoError(t, err)
		t.Cleanup(func() { l.Close() })
		nc, err := e.dialer.Dial("rdma", l.Addr().String())
		if err != nil {
			return e, nil, nil, err
		}
		return e, nc.(*rdmanet.Conn), rdmatest.Accept(t, l.(*rdmanet.Listener)), nil
	}
	inLog := func(t *testing.T, l *rawLog) {
		t.Helper()
		require.Eventually(t, func() bool { return l.String() != "" }, rdmatest.Patience, time.Millisecond)
		isShown(t, l.String())
	}

	t.Run("refused provider", func(t *testing.T) {
		e, c, s, err := run(t, func(e *ends) {
			e.here.Say(func(h *framing.Hello) { h.Offers[0].Library = harmless })
			e.there.Say(func(h *framing.Hello) { h.Unoffered = append(h.Unoffered, "x: "+harmless) })
		})
		require.NoError(t, err)
		for i, c := range []*rdmanet.Conn{c, s} {
			isShown(t, fmt.Sprint(c.Info().Refused))
			inLog(t, &e.logs[i])
		}
		rdmatest.CloseAll(t, c, s)
	})
	t.Run("no provider", func(t *testing.T) {
		e, _, _, err := run(t, func(e *ends) {
			e.here.Say(func(h *framing.Hello) { h.Offers, h.Unoffered = nil, []string{harmless, "y: " + harmless} })
			e.there.Say(func(h *framing.Hello) { h.Offers, h.Unoffered = nil, []string{harmless, "x: " + harmless} })
		})
		require.ErrorIs(t, err, rdmanet.ErrNoProvider)
		isShown(t, err.Error())
		inLog(t, &e.logs[1])
	})
	t.Run("not authorised", func(t *testing.T) {
		_, _, _, err := run(t, func(e *ends) {
			e.listener.Authorize = func(context.Context, rdmanet.PeerInfo) error { return errors.New(harmless) }
		})
		require.ErrorIs(t, err, rdmanet.ErrUnauthorized)
		isShown(t, err.Error())
	})
	t.Run("certificate", func(t *testing.T) {
		ours := newAuthority(t)
		ascii := "a\x1b[2J\nb\x07c" // in a name of a host there may be nothing else
		_, _, _, err := run(t, func(e *ends) {
			e.listener.TLSConfig = &tls.Config{Certificates: []tls.Certificate{ours.sign("server", time.Hour, ascii)}}
			e.dialer.TLSConfig = &tls.Config{RootCAs: ours.pool, ServerName: "another"}
		})
		require.ErrorIs(t, err, rdmanet.ErrTLSHandshake)
		require.ErrorAs(t, err, new(x509.HostnameError))
		assert.Contains(t, err.Error(), "valid for a?[2J?b?c")
		for _, r := range err.Error() {
			assert.True(t, unicode.IsPrint(r), "%q", r)
		}
	})
}
