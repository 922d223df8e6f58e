package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
)

var clearPreamble = (&framing.Preamble{Version: framing.Version}).Append(nil)

// message encodes a message, which must be valid. change may turn it into one that is
// not.
func message(k framing.Kind, b framing.Body, change ...func([]byte) []byte) []byte {
	m, err := framing.AppendMessage(nil, k, b)
	if err != nil {
		panic(err)
	}
	for _, f := range change {
		m = f(m)
	}
	return m
}

func validHello() *framing.Hello {
	h := newBinder(offer("tcp")).hello
	return &h
}

func validAttach() *framing.Attach {
	a := (&fakeBinding{offer: offer("tcp")}).Local()
	return &a
}

// TestBadInput sends each side what a broken, foreign or hostile peer might send, and
// then ends the stream.
func TestBadInput(t *testing.T) {
	cut := func(n int) func([]byte) []byte { return func(m []byte) []byte { return m[:n] } }
	hello, attach := validHello(), validAttach()
	other := validAttach()
	other.Provider = "net"
	page := validHello()
	page.PageNonce = [16]byte{1}
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	helloMsg := message(framing.KindHello, hello)
	tests := []struct {
		name string
		send []byte
		dial error // what Dial returns; nil if the input is not for Dial
		acc  error // what Accept returns, nil likewise
	}{
		{"nothing", nil, ErrNotRdmanet, ErrNotRdmanet},
		{"an HTTP client", []byte("GET / HTTP/1.1\r\n\r\n"), nil, ErrNotRdmanet},
		{"an HTTP server", []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), ErrNotRdmanet, nil},
		{"an SSH server", []byte("SSH-2.0-OpenSSH_9.2\r\n"), ErrNotRdmanet, nil},
		{"a TLS client", []byte("\x16\x03\x01\x02\x00\x01\x00\x01"), nil, ErrNotRdmanet},
		{"less than a preamble of another protocol", []byte("+OK\r\n"), ErrNotRdmanet, ErrNotRdmanet},
		{"half a preamble", clearPreamble[:6], ErrNotRdmanet, ErrNotRdmanet},
		{"another handshake version", (&framing.Preamble{Version: framing.Version + 1}).Append(nil), ErrVersion, ErrVersion},
		{"no hello", clearPreamble, io.ErrUnexpectedEOF, io.ErrUnexpectedEOF},
		{"half a length", join(clearPreamble, helloMsg[:2]), io.ErrUnexpectedEOF, io.ErrUnexpectedEOF},
		{"a truncated hello", join(clearPreamble, helloMsg[:40]), io.ErrUnexpectedEOF, io.ErrUnexpectedEOF},
		{"an oversized hello", join(clearPreamble, []byte{1, 0, 1, 0, 1}), framing.ErrTooLong, framing.ErrTooLong},
		{"an absurd length", join(clearPreamble, []byte("\xff\xff\xff\xff")), framing.ErrTooLong, framing.ErrTooLong},
		{"an empty message", join(clearPreamble, make([]byte, 4)), framing.ErrField, framing.ErrField},
		{"garbage for a hello", join(clearPreamble, []byte("\x10\x00\x00\x00\x01garbage garbage")), framing.ErrTruncated, framing.ErrTruncated},
		{"an unknown message", join(clearPreamble, []byte("\x01\x00\x00\x00\x63")), framing.ErrField, framing.ErrField},
		{"the wrong message", join(clearPreamble, message(framing.KindConfirm, nil)), ErrMalformed, ErrMalformed},
		{"a hello without fields", join(clearPreamble, message(framing.KindHello, nil)), framing.ErrMissing, framing.ErrMissing},
		{"a hello with a field to understand", join(clearPreamble, message(framing.KindHello, hello, func(m []byte) []byte {
			m[0] += 4
			return append(m, 0x70, 0x80, 0, 0)
		})), framing.ErrCritical, framing.ErrCritical},
		{"a page that was never offered", join(clearPreamble, message(framing.KindHello, page)), errPage, nil},
		{"a reject that is cut off", join(clearPreamble, message(framing.KindReject, &framing.Reject{Code: 1}, cut(8))), io.ErrUnexpectedEOF, nil},
		{"a malformed reject", join(clearPreamble, message(framing.KindReject, nil)), framing.ErrMissing, nil},
		{"a provider that was not offered", join(clearPreamble, helloMsg, message(framing.KindSelect, other)), ErrMalformed, nil},
		{"a malformed select", join(clearPreamble, helloMsg, message(framing.KindSelect, nil)), framing.ErrMissing, nil},
		{"nothing after the select", join(clearPreamble, helloMsg, message(framing.KindSelect, attach)), io.ErrUnexpectedEOF, nil},
		{"a second select", join(clearPreamble, helloMsg, message(framing.KindSelect, attach), message(framing.KindSelect, attach)), ErrMalformed, nil},
		{"the same select after a decline", join(clearPreamble, helloMsg, message(framing.KindSelect, attach),
			message(framing.KindDecline, &framing.Decline{}), message(framing.KindSelect, attach)), ErrMalformed, nil},
		{"another provider attached", join(clearPreamble, helloMsg, message(framing.KindAttach, other)), nil, ErrMalformed},
		{"a malformed attach", join(clearPreamble, helloMsg, message(framing.KindAttach, nil)), nil, framing.ErrMissing},
		{"gone before the confirm", join(clearPreamble, helloMsg, message(framing.KindAttach, attach)), nil, io.ErrUnexpectedEOF},
		{"the wrong end", join(clearPreamble, helloMsg, message(framing.KindAttach, attach), helloMsg), nil, ErrMalformed},
		{"a malformed decline", join(clearPreamble, helloMsg, message(framing.KindDecline, nil, func(m []byte) []byte {
			m[0] = 2
			return append(m, 0)
		})), nil, framing.ErrTruncated},
	}
	for _, tt := range tests {
		for name, x := range map[string]struct {
			run  side
			want error
		}{"dial": {Dial, tt.dial}, "accept": {Accept, tt.acc}} {
			if x.want == nil {
				continue
			}
			t.Run(name+" "+tt.name, func(t *testing.T) {
				mine, theirs := loopback(t)
				b := newBinder(offer("tcp"))
				done := start(t.Context(), x.run, mine, Config{}, b)
				_, err := theirs.Write(tt.send)
				require.NoError(t, err)
				err = theirs.(*net.TCPConn).CloseWrite()
				if !errors.Is(err, syscall.ENOTCONN) { // already refused and reset
					require.NoError(t, err)
				}
				r := <-done
				assert.ErrorIs(t, r.err, x.want)
				b.settled(t, nil)
				_, err = io.Copy(io.Discard, theirs)
				if err != nil { // data of ours was unread
					assert.ErrorContains(t, err, "reset")
				}
			})
		}
	}
}

// TestRejectArrives: if a listener gives up, its peer learns why, even while the peer's
// own bytes are still in flight.
func TestRejectArrives(t *testing.T) {
	mine, theirs := loopback(t)
	done := start(t.Context(), Accept, mine, Config{}, newBinder(offer("tcp")))
	_, err := theirs.Write(append(clearPreamble, "\xff\xff\xff\xff and a lot more"...))
	require.NoError(t, err)
	all, err := io.ReadAll(theirs)
	require.NoError(t, err)
	theirs.Close()
	assert.ErrorIs(t, (<-done).err, ErrMalformed)

	kind, body, err := framing.SplitMessage(all[framing.PreambleSize+framing.LengthSize:])
	require.NoError(t, err)
	assert.Equal(t, framing.KindReject, kind)
	var r framing.Reject
	require.NoError(t, framing.DecodeBody(body, &r))
	assert.Equal(t, framing.RejectMalformed, r.Code)
	assert.Contains(t, r.Text, "too long")
}

// TestLingerEnds: a refused peer that goes on sending, or never closes, does not
// hold up the listener.
func TestLingerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine, theirs := net.Pipe()
		done := start(t.Context(), Accept, mine, Config{}, newBinder(offer("tcp")))
		go drain(theirs)
		_, err := theirs.Write((&framing.Preamble{Version: framing.Version + 1}).Append(nil))
		require.NoError(t, err)
		begin := time.Now()
		assert.ErrorIs(t, (<-done).err, ErrVersion)
		assert.Equal(t, lingerTime, time.Since(begin))
		theirs.Close()
	})
}

// TestAnotherProtocolThatWaits: bytes that no preamble has are an answer, even if there are fewer of
// them than a preamble has, and what sent them waits for the other side.
func TestAnotherProtocolThatWaits(t *testing.T) {
	for name, run := range map[string]side{"dial": Dial, "accept": Accept} {
		t.Run(name, func(t *testing.T) {
			mine, theirs := loopback(t)
			done := start(t.Context(), run, mine, Config{}, newBinder(offer("tcp")))
			_, err := theirs.Write([]byte("+OK\r\n"))
			require.NoError(t, err)
			assert.ErrorIs(t, (<-done).err, ErrNotRdmanet)
		})
	}
}

// TestEcho: a server that sends back what it gets does not pass for a listener of this process.
func TestEcho(t *testing.T) {
	for _, provider := range []string{"shm", "tcp"} {
		mine, theirs := loopback(t)
		go func() { _, _ = io.Copy(theirs, theirs) }()
		b := newBinder(offer(provider))
		b.hello.Listener = 0
		err := (<-start(t.Context(), Dial, mine, Config{}, b)).err
		assert.ErrorIs(t, err, ErrNotRdmanet)
		assert.ErrorContains(t, err, "it sends back what it gets")
	}
}

// TestMutePeer: what to do about a peer that sends no preamble is said once there was time for it to
// send one.
func TestMutePeer(t *testing.T) {
	for name, tt := range map[string]struct {
		run    side
		remedy string
	}{"dial": {Dial, "plain TCP needs Dialer.Fallback"}, "accept": {Accept, "a plain client that waits for the server to speak needs a plain listener"}} {
		for sent, preamble := range map[string][]byte{"nothing": nil, "half a preamble": clearPreamble[:6]} {
			t.Run(name+", "+sent, func(t *testing.T) {
				begin := func(ctx context.Context) <-chan result {
					mine, theirs := loopback(t)
					_, err := theirs.Write(preamble)
					require.NoError(t, err)
					return start(ctx, tt.run, mine, Config{Timeout: 100 * time.Millisecond}, newBinder(offer("tcp")))
				}
				err := (<-begin(t.Context())).err
				assert.ErrorIs(t, err, ErrHandshakeTimeout)
				assert.ErrorIs(t, err, ErrMute)
				assert.ErrorContains(t, err, tt.remedy)

				ctx, cancel := context.WithCancel(t.Context())
				done := begin(ctx)
				cancel()
				err = (<-done).err
				assert.ErrorIs(t, err, context.Canceled)
				assert.NotContains(t, err.Error(), tt.remedy)
			})
		}
	}
}

// dialed runs Dial against a listening side that the test plays by hand, and that has read Dial's
// Hello.
func dialed(t *testing.T, d *fakeBinder) (l *handshake, done <-chan result) {
	t.Helper()
	mine, theirs := loopback(t)
	done = start(t.Context(), Dial, mine, Config{}, d)
	l = &handshake{nc: theirs, raw: theirs}
	_, err := l.readPreamble()
	require.NoError(t, err)
	require.NoError(t, l.writePreamble())
	_, body, err := l.expect(framing.KindHello)
	require.NoError(t, err)
	require.NoError(t, framing.DecodeBody(body, &l.remote))
	return l, done
}

func selects(t *testing.T, l *handshake, o framing.Offer) {
	t.Helper()
	attach := (&fakeBinding{offer: o}).Local()
	require.NoError(t, l.write(framing.KindSelect, &attach))
}

// TestHostileSelect: the dialing side checks for itself that a selected provider can be used; it does
// not rely on the listening side.
func TestHostileSelect(t *testing.T) {
	shm, tcp := offer("shm"), offer("tcp")
	own := func(h *framing.Hello) { h.PageNonce = [16]byte{} }
	for name, tt := range map[string]struct {
		provider framing.Offer
		change   func(h *framing.Hello) // makes unusable what could be selected before
		why      string
	}{
		"protocol version": {tcp, func(h *framing.Hello) { h.Offers[0].ProtocolVersion++ }, "wire protocols differ"},
		"not its own":      {tcp, func(h *framing.Hello) { h.Offers = nil }, "only one side offers it"},
		"settings":         {tcp, func(h *framing.Hello) { h.Offers[0].Settings = "SIZE=1" }, "settings of libfabric differ"},
		"library":          {shm, func(h *framing.Hello) { h.Offers[0].Library = "1.18" }, "library versions differ"},
		"host":             {shm, func(h *framing.Hello) { h.Host[0]++ }, "different hosts"},
		"user":             {shm, func(h *framing.Hello) { h.UID++ }, "different users"},
		"no page":          {shm, own, "share no memory"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newBinder(tt.provider)
			l, done := dialed(t, d)
			h := *validHello()
			h.Offers, h.PageNonce = []framing.Offer{tt.provider}, l.remote.PageNonce
			tt.change(&h)
			require.NoError(t, l.write(framing.KindHello, &h))
			selects(t, l, tt.provider)
			r := <-done
			require.ErrorIs(t, r.err, ErrMalformed)
			assert.ErrorContains(t, r.err, tt.why)
			assert.Empty(t, d.bindings, "nothing was prepared")
		})
	}
}
