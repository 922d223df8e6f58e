package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
)

func TestHandshake(t *testing.T) {
	d, l := newBinder(offer("tcp")), newBinder(offer("tcp"))
	l.hello.Listener = 77
	dnc, lnc := loopback(t)
	dr, lr := meet(t, dnc, lnc, Config{}, Config{}, d, l)
	require.NoError(t, dr.err)
	require.NoError(t, lr.err)

	assert.Equal(t, uint32(77), dr.s.Remote().Listener)
	assert.Equal(t, d.hello.Process, lr.s.Remote().Process)
	assert.Equal(t, lr.b.Local(), dr.b.remote)
	assert.Equal(t, dr.b.Local(), lr.b.remote)
	assert.True(t, dr.b.checked)
	assert.False(t, lr.b.checked, "only the dialling side checks")
	assert.Nil(t, dr.s.Page())
	assert.Nil(t, lr.s.Page())
	assert.Equal(t, dnc.LocalAddr(), lr.s.RemoteAddr())
	assert.Equal(t, dnc.RemoteAddr(), lr.s.LocalAddr())
	assert.Zero(t, dr.s.Stats())
	assert.Nil(t, dr.s.Peer().TLS)
}

func TestHandshakeSharesPage(t *testing.T) {
	dnc, lnc := loopback(t)
	dr, lr := meet(t, dnc, lnc, Config{}, Config{}, newBinder(offer("shm")), newBinder(offer("shm")))
	require.NoError(t, dr.err)
	require.NoError(t, lr.err)
	dp, lp := dr.s.Page(), lr.s.Page()
	require.NotNil(t, dp)
	require.NotNil(t, lp)
	assert.Same(t, dp, dr.b.page)
	assert.Same(t, lp, lr.b.page)

	dp.own.Store(1)
	assert.True(t, lp.peer.CompareAndSwap(1, 0), "the listener sees the dialer asleep")
	assert.Zero(t, dp.own.Load())
	lp.own.Store(1)
	assert.EqualValues(t, 1, dp.peer.Load())
}

func TestNegotiation(t *testing.T) {
	with := func(o framing.Offer, change func(*framing.Offer)) framing.Offer {
		change(&o)
		return o
	}
	list := func(o ...framing.Offer) []framing.Offer { return o }
	fail := func(providers ...string) map[string]error {
		m := make(map[string]error)
		for _, p := range providers {
			m[p] = errFake
		}
		return m
	}
	tests := []struct {
		name             string
		dialer, listener []framing.Offer
		change           func(d, l *fakeBinder)
		want             string   // provider, "" for none
		reasons          []string // parts of the errors, in order
		refused          []string // beginnings of the reasons against better providers, on both sides, in order
	}{
		{name: "the listener's order wins",
			dialer: list(offer("tcp"), offer("net")), listener: list(offer("net"), offer("tcp")), want: "net"},
		{name: "what only one side has is passed over",
			dialer: list(offer("efa"), offer("tcp")), listener: list(offer("psm3"), offer("tcp")), want: "tcp",
			refused: []string{"psm3: only one side offers it", "efa: the listener does not offer it"}},
		{name: "what is wanted less is not refused",
			dialer: list(offer("tcp"), offer("efa")), listener: list(offer("tcp"), offer("psm3")), want: "tcp"},
		{name: "the listener's order decides what is wanted less",
			dialer:   list(offer("a"), offer("b"), offer("c")),
			listener: list(offer("c"), offer("b"), with(offer("a"), func(o *framing.Offer) { o.Protocol = 8 })), want: "c"},
		{name: "nothing in common",
			dialer: list(offer("efa")), listener: list(offer("psm3")),
			reasons: []string{"psm3: only one side offers it", "efa: the listener does not offer it"}},
		{name: "no offers at all"},
		{name: "other wire protocol",
			dialer:   list(offer("tcp")),
			listener: list(with(offer("tcp"), func(o *framing.Offer) { o.Protocol = 8 })),
			reasons:  []string{"tcp: wire protocols differ: 8 version 1 and 7 version 1"}},
		{name: "other wire protocol version",
			dialer:   list(offer("tcp"), offer("net")),
			listener: list(with(offer("tcp"), func(o *framing.Offer) { o.ProtocolVersion = 2 }), offer("net")), want: "net",
			refused: []string{"tcp: wire protocols differ: 7 version 2 and 7 version 1"}},
		{name: "other settings",
			dialer:   list(with(offer("tcp"), func(o *framing.Offer) { o.Settings = "SIZE=1" }), offer("net")),
			listener: list(with(offer("tcp"), func(o *framing.Offer) { o.Settings = "SIZE=2" }), offer("net")), want: "net",
			refused: []string{`tcp: settings of libfabric differ: "SIZE=2" and "SIZE=1"`}},
		{name: "several offers of one provider",
			dialer:   list(with(offer("tcp"), func(o *framing.Offer) { o.Protocol = 8 }), offer("tcp")),
			listener: list(offer("tcp")), want: "tcp"},
		{name: "other library across hosts is fine",
			dialer:   list(with(offer("tcp"), func(o *framing.Offer) { o.Library = "2.5" })),
			listener: list(offer("tcp")), want: "tcp"},
		{name: "other library on one host is not",
			dialer:   list(with(offer("shm"), func(o *framing.Offer) { o.Library = "2.5" }), offer("tcp")),
			listener: list(offer("shm"), offer("tcp")), want: "tcp",
			refused: []string{`shm: library versions differ: "1.17" and "2.5"`}},
		{name: "same host", dialer: list(offer("tcp"), offer("shm")), listener: list(offer("shm"), offer("tcp")), want: "shm"},
		{name: "other host", dialer: list(offer("shm"), offer("tcp")), listener: list(offer("shm"), offer("tcp")),
			change: func(d, _ *fakeBinder) { d.hello.Host = [16]byte{5} }, want: "tcp",
			refused: []string{"shm: the two sides are on different hosts"}},
		{name: "other user and something else", dialer: list(offer("shm"), offer("tcp")), listener: list(offer("shm"), offer("tcp")),
			change: func(d, _ *fakeBinder) { d.hello.UID = 50 }, want: "tcp",
			refused: []string{"shm: the two sides run as different users (3 and 50)"}},
		{name: "other host and nothing else", dialer: list(offer("shm")), listener: list(offer("shm")),
			change:  func(d, _ *fakeBinder) { d.hello.Host = [16]byte{5} },
			reasons: []string{"shm: the two sides are on different hosts"}},
		{name: "other user", dialer: list(offer("shm")), listener: list(offer("shm")),
			change:  func(d, _ *fakeBinder) { d.hello.UID = 50 },
			reasons: []string{"shm: the two sides run as different users (3 and 50)"}},
		{name: "one side thinks it crosses hosts", listener: list(offer("shm")),
			dialer:  list(with(offer("shm"), func(o *framing.Offer) { o.SameHost = false })),
			reasons: []string{"shm: only one side takes it for a provider of one host"}},
		{name: "the listener cannot prepare", dialer: list(offer("a"), offer("b")), listener: list(offer("a"), offer("b")),
			change: func(_, l *fakeBinder) { l.prepare = fail("a") }, want: "b", refused: []string{"a: it is only a test"}},
		{name: "a reason that looks like two", dialer: list(offer("a"), offer("b")), listener: list(offer("a"), offer("b")),
			change: func(_, l *fakeBinder) { l.prepare = map[string]error{"a": errors.New("no; b: worse")} }, want: "b",
			refused: []string{"a: no, b: worse"}},
		{name: "the dialer cannot prepare", dialer: list(offer("a"), offer("b")), listener: list(offer("a"), offer("b")),
			change: func(d, _ *fakeBinder) { d.prepare = fail("a") }, want: "b", refused: []string{"a: "}},
		{name: "the dialer cannot connect", dialer: list(offer("a"), offer("b")), listener: list(offer("a"), offer("b")),
			change: func(d, _ *fakeBinder) { d.connect = fail("a") }, want: "b", refused: []string{"a: "}},
		{name: "the listener cannot connect", dialer: list(offer("a"), offer("b")), listener: list(offer("a"), offer("b")),
			change: func(_, l *fakeBinder) { l.connect = fail("a") }, want: "b", refused: []string{"a: "}},
		{name: "the fabric does not answer", dialer: list(offer("shm"), offer("b")), listener: list(offer("shm"), offer("b")),
			change: func(d, _ *fakeBinder) { d.check = fail("shm") }, want: "b", refused: []string{"shm: "}},
		{name: "a chain of failures", dialer: list(offer("a"), offer("b"), offer("c"), offer("d"), offer("e"), offer("f")),
			listener: list(offer("a"), offer("b"), offer("c"), offer("d"), offer("e"), offer("f")),
			change: func(d, l *fakeBinder) {
				l.prepare, d.prepare, d.connect, l.connect, d.check = fail("a"), fail("b"), fail("c"), fail("d"), fail("e")
			}, want: "f", refused: []string{"a: ", "b: ", "c: ", "d: ", "e: "}},
		{name: "a chain that leaves nothing", dialer: list(offer("a"), offer("b"), offer("c"), offer("d"), offer("e")),
			listener: list(offer("a"), offer("b"), offer("c"), offer("d"), offer("e")),
			change: func(d, l *fakeBinder) {
				l.prepare, d.prepare, d.connect, l.connect, d.check = fail("a"), fail("b"), fail("c"), fail("d"), fail("e")
			},
			reasons: []string{"a: ", "b: ", "c: ", "d: ", "e: "}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, l := newBinder(tt.dialer...), newBinder(tt.listener...)
			if tt.change != nil {
				tt.change(d, l)
			}
			dnc, lnc := loopback(t)
			dr, lr := meet(t, dnc, lnc, Config{}, Config{}, d, l)
			if tt.want != "" {
				require.NoError(t, dr.err)
				require.NoError(t, lr.err)
				assert.Equal(t, tt.want, dr.b.offer.Provider)
				assert.Equal(t, tt.want, lr.b.offer.Provider)
				for _, b := range []*fakeBinding{dr.b, lr.b} {
					require.Len(t, b.refused, len(tt.refused), "%q", b.refused)
					slices.Sort(b.refused)
					for i, want := range slices.Sorted(slices.Values(tt.refused)) {
						assert.Truef(t, strings.HasPrefix(b.refused[i], want), "%q, not %q", b.refused[i], want)
					}
				}
				assert.Equal(t, tt.want == "shm", dr.s.Page() != nil)
				assert.Equal(t, tt.want == "shm", lr.s.Page() != nil)
				return
			}
			for _, err := range []error{dr.err, lr.err} {
				require.ErrorIs(t, err, ErrNoProvider)
				var ne *NegotiationError
				require.ErrorAs(t, err, &ne)
				require.Len(t, ne.Reasons, len(tt.reasons), "%q", ne.Reasons)
				for _, r := range tt.reasons {
					assert.Contains(t, err.Error(), r)
				}
			}
		})
	}
}

// TestRefusedByHostile: whatever a listener says about providers, it becomes clean text of bounded
// length.
func TestRefusedByHostile(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		want []string
	}{
		"nothing, as of old": {"", nil},
		"no provider":        {"nonsense", []string{"nonsense"}},
		"separators":         {"; ; ;;; ", []string{";;"}},
		"escapes":            {"shm: \x1b[2J\x00; net: \xff", []string{"shm: ?[2J?", "net: ?"}},
		"twice":              {"shm: no; shm: no", []string{"shm: no", "shm: no"}},
		"the one in use":     {"tcp: no", []string{}},
		"too long":           {strings.Repeat("x", 2*framing.MaxText), []string{strings.Repeat("x", framing.MaxText)}},
	} {
		t.Run(name, func(t *testing.T) {
			mine, theirs := loopback(t)
			b := newBinder(offer("tcp"))
			attach := validAttach()
			attach.Refused = tt.text
			done := start(t.Context(), Dial, mine, Config{}, b)
			_, err := theirs.Write(spoken(message(framing.KindHello, validHello()), message(framing.KindSelect, attach), message(framing.KindReady, nil)))
			require.NoError(t, err)
			go drain(theirs)
			r := <-done
			require.NoError(t, r.err)
			defer r.s.Close()
			assert.ElementsMatch(t, tt.want, r.b.refused)
		})
	}
}

func TestBinderRefuses(t *testing.T) {
	tests := []struct {
		name     string
		change   func(d, l *fakeBinder)
		dialer   error
		listener error
		text     string // of the dialer's error
	}{
		{name: "not authorised", change: func(_, l *fakeBinder) { l.authErr = errFake },
			dialer: ErrUnauthorized, listener: ErrUnauthorized, text: "not authorised by the listener: it is only a test"},
		{name: "not authorised by one who cannot be reached", change: func(_, l *fakeBinder) {
			l.authErr = fmt.Errorf("accounts: %w", &net.OpError{Op: "dial", Err: errFake})
		}, dialer: ErrUnauthorized, listener: ErrUnauthorized, text: "not authorised by the listener: accounts: dial: it is only a test"},
		{name: "not authorised after half an answer", change: func(_, l *fakeBinder) { l.authErr = io.ErrUnexpectedEOF },
			dialer: ErrUnauthorized, listener: ErrUnauthorized, text: "not authorised by the listener: unexpected EOF"},
		{name: "out of memory while preparing", change: func(_, l *fakeBinder) {
			l.prepare = map[string]error{"tcp": fmt.Errorf("%w: 3 bytes", ErrMemory)}
		}, dialer: ErrMemory, listener: ErrMemory, text: "tcp: memory budget exhausted"},
		{name: "the dialer out of memory", change: func(d, _ *fakeBinder) {
			d.prepare = map[string]error{"tcp": fmt.Errorf("%w: 3 bytes", ErrMemory)}
		}, dialer: ErrMemory, listener: ErrNoProvider, text: "tcp: memory budget exhausted"},
		{name: "closing", change: func(_, l *fakeBinder) { l.offerErr = ErrClosing },
			dialer: ErrClosing, listener: ErrClosing, text: "the listener is closing"},
		{name: "closing while preparing", change: func(_, l *fakeBinder) { l.prepare = map[string]error{"tcp": ErrClosing} },
			dialer: ErrClosing, listener: ErrClosing, text: "the listener is closing"},
		{name: "out of memory", change: func(_, l *fakeBinder) { l.offerErr = fmt.Errorf("%w: 3 bytes", ErrMemory) },
			dialer: ErrMemory, listener: ErrMemory, text: "the listener's memory budget exhausted: "},
		{name: "anything else", change: func(_, l *fakeBinder) { l.offerErr = errFake },
			dialer: ErrRejected, listener: errFake, text: "rejected by the listener: it is only a test"},
		{name: "the dialer itself", change: func(d, _ *fakeBinder) { d.offerErr = errFake },
			dialer: errFake, listener: ErrNotRdmanet},
		{name: "a hello that cannot be sent", dialer: framing.ErrTooLong, listener: io.ErrUnexpectedEOF,
			change: func(d, _ *fakeBinder) { d.hello.Offers[0].Provider = strings.Repeat("x", 256) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, l := newBinder(offer("tcp")), newBinder(offer("tcp"))
			tt.change(d, l)
			dnc, lnc := loopback(t)
			dr, lr := meet(t, dnc, lnc, Config{}, Config{}, d, l)
			assert.ErrorIs(t, dr.err, tt.dialer)
			assert.ErrorContains(t, dr.err, tt.text)
			assert.ErrorIs(t, lr.err, tt.listener)
		})
	}
}

// TestContext: ending the context ends a handshake in each of its waits, on either side.
func TestContext(t *testing.T) {
	for name, run := range map[string]side{"dial": Dial, "accept": Accept} {
		for _, after := range []int{0, 1, 2, 3} { // messages that the peer answers
			t.Run(fmt.Sprintf("%s after %d", name, after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					mine, theirs := net.Pipe()
					defer theirs.Close()
					b := newBinder(offer("tcp"))
					b.hang = map[string]bool{"tcp": true}
					ctx, cancel := context.WithCancel(t.Context())
					done := start(ctx, run, mine, Config{}, b)
					go script(theirs, name == "dial", after)
					synctest.Wait()
					cancel()
					synctest.Wait() // the clock stands still: the handshake ends at once
					r := <-done
					assert.ErrorIs(t, r.err, context.Canceled)
					b.settled(t, nil)
					_, err := theirs.Read(make([]byte, 1))
					assert.Equal(t, io.EOF, err, "closed")
				})
			})
		}
	}
}

// script sends the first steps messages of a handshake and then falls silent.
func script(nc net.Conn, listening bool, steps int) {
	hello := newBinder(offer("tcp")).hello
	attach := (&fakeBinding{offer: offer("tcp")}).Local()
	msg := func(k framing.Kind, b framing.Body) []byte {
		m, _ := framing.AppendMessage(nil, k, b)
		return m
	}
	preamble := framing.Preamble{Version: framing.Version}
	answers := [][]byte{preamble.Append(nil), msg(framing.KindHello, &hello), msg(framing.KindAttach, &attach)}
	if listening {
		answers = [][]byte{preamble.Append(nil), append(msg(framing.KindHello, &hello), msg(framing.KindSelect, &attach)...), msg(framing.KindReady, nil)}
	}
	go drain(nc)
	for _, a := range answers[:steps] {
		if _, err := nc.Write(a); err != nil {
			return // the other side has given up
		}
	}
}

func drain(r io.Reader) { _, _ = io.Copy(io.Discard, r) }

// TestTimeout: each wait of a handshake has all of its time.
func TestTimeout(t *testing.T) {
	for name, run := range map[string]side{"dial": Dial, "accept": Accept} {
		for steps := range 4 {
			t.Run(fmt.Sprintf("%s after %d", name, steps), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					mine, theirs := net.Pipe()
					defer theirs.Close()
					b := newBinder(offer("tcp"))
					b.hang = map[string]bool{"tcp": true}
					begin := time.Now()
					done := start(t.Context(), run, mine, Config{Timeout: 3 * time.Second}, b)
					go script(theirs, name == "dial", steps)
					r := <-done
					assert.ErrorIs(t, r.err, ErrHandshakeTimeout)
					isTimeout(t, r.err)
					assert.Equal(t, 3*time.Second, time.Since(begin))
					b.settled(t, nil)
				})
			})
		}
	}
	for _, steps := range []int{0, 3} {
		t.Run(fmt.Sprintf("the caller's deadline after %d", steps), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mine, theirs := net.Pipe()
				defer theirs.Close()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				b := newBinder(offer("tcp"))
				b.hang = map[string]bool{"tcp": true}
				begin := time.Now()
				go script(theirs, true, steps)
				r := <-start(ctx, Dial, mine, Config{}, b)
				assert.ErrorIs(t, r.err, context.DeadlineExceeded)
				isTimeout(t, r.err)
				assert.Equal(t, time.Second, time.Since(begin))
			})
		})
	}
}

// TestOutOfTime: the only provider has all of the time of the side that has less, and what ends the
// handshake is a time-out on both.
func TestOutOfTime(t *testing.T) {
	const short, long = 3 * time.Second, 10 * time.Second
	for name, tt := range map[string]struct{ dialer, listener time.Duration }{
		"the dialer's":   {short, long},
		"the listener's": {long, short},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dnc, lnc := net.Pipe()
				d, l := newBinder(offer("a"), offer("b")), newBinder(offer("a"), offer("c"))
				d.hang = map[string]bool{"a": true}
				begin := time.Now()
				dc, lc := start(t.Context(), Dial, dnc, Config{Timeout: tt.dialer}, d), start(t.Context(), Accept, lnc, Config{Timeout: tt.listener}, l)
				dr, lr := <-dc, <-lc
				assert.ErrorIs(t, dr.err, ErrHandshakeTimeout)
				isTimeout(t, dr.err)
				assert.Equal(t, 1, strings.Count(dr.err.Error(), "timed out"), dr.err.Error())
				assert.NotErrorIs(t, dr.err, ErrNoProvider)
				assert.InDelta(t, short, d.bindings[0].ended.Sub(begin), float64(time.Second))
				assert.ErrorIs(t, d.bindings[0].aborted, ErrSilent)
				if tt.listener < tt.dialer {
					assert.ErrorContains(t, dr.err, "the listener's handshake timed out: waiting for confirm")
					isTimeout(t, lr.err)
				}
				for _, b := range []*fakeBinder{d, l} {
					b.settled(t, nil)
				}
			})
		})
	}
}

// TestContextAtTheEnd: a context that ends just when the handshake completes
// still undoes it, and does so only once.
func TestContextAtTheEnd(t *testing.T) {
	dnc, lnc := loopback(t)
	ctx, cancel := context.WithCancel(t.Context())
	d, l := newBinder(offer("tcp")), newBinder(offer("tcp"))
	d.checked = cancel // the Confirm that follows may or may not be sent
	lc := start(t.Context(), Accept, lnc, Config{}, l)
	dr := <-start(ctx, Dial, dnc, Config{}, d)
	assert.ErrorIs(t, dr.err, context.Canceled)
	d.settled(t, nil)
	if lr := <-lc; lr.err == nil { // the Confirm was sent
		h := newRecorder()
		lr.s.Start(h)
		assert.Error(t, h.wait(t), "the listener learns that the dialer is gone")
		assert.NoError(t, lr.s.Close())
	}
}

// TestClosing: a dialer learns that the listener is closing, whichever of the dialer's
// messages the listener is waiting for.
func TestClosing(t *testing.T) {
	for after := range 3 { // messages of the dialer
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			mine, theirs := loopback(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			l := newBinder(offer("tcp"))
			done := start(ctx, Accept, mine, Config{}, l)
			d := &handshake{nc: theirs, raw: theirs}
			require.NoError(t, d.writePreamble())
			_, err := d.readPreamble()
			require.NoError(t, err)
			var kind framing.Kind
			var body []byte
			if after > 0 {
				require.NoError(t, d.write(framing.KindHello, validHello()))
				for _, want := range []framing.Kind{framing.KindHello, framing.KindSelect} {
					_, _, err = d.expect(want)
					require.NoError(t, err)
				}
			}
			if after > 1 {
				require.NoError(t, d.write(framing.KindAttach, validAttach()))
				_, _, err = d.expect(framing.KindReady)
				require.NoError(t, err)
			}
			cancel(ErrClosing)
			kind, body, err = d.read()
			if after > 1 { // the dialer might have a session already
				require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			} else {
				require.NoError(t, err)
				require.Equal(t, framing.KindReject, kind)
				assert.ErrorIs(t, d.rejected(body), ErrClosing)
			}
			theirs.Close()
			assert.ErrorIs(t, (<-done).err, ErrClosing)
			l.settled(t, nil)
		})
	}
}

// TestReasonOfTwoHosts: what could be mended in vain is not the reason.
func TestReasonOfTwoHosts(t *testing.T) {
	own := framing.Offer{Provider: "shm", SameHost: true, Library: "1.17", Settings: "FI_SHM_X=1"}
	theirs := own
	theirs.Settings = "FI_SHM_X=2"
	hs := &handshake{otherHost: true}
	hs.remote.Offers = []framing.Offer{theirs}
	assert.Contains(t, hs.mismatch(&own), "different hosts")
	hs.otherHost, hs.remote.UID = false, 5
	assert.Contains(t, hs.mismatch(&own), "different users")
	hs.remote.UID = 0
	assert.Contains(t, hs.mismatch(&own), "settings")
}

// TestSaidOnce: the error of a handshake that has timed out says so once.
func TestSaidOnce(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ErrHandshakeTimeout)
	for _, tt := range []struct {
		err  error
		want string
	}{
		{context.Cause(ctx), "handshake timed out"},
		{fmt.Errorf("waiting for x: %w", context.Cause(ctx)), "handshake timed out: waiting for x"},
		{errFake, "handshake timed out: " + errFake.Error()},
	} {
		err := (&handshake{}).explain(ctx, tt.err)
		require.EqualError(t, err, tt.want)
		require.ErrorIs(t, err, ErrHandshakeTimeout)
	}
}
