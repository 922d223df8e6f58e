package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
)

// In the fuzz targets the peer sends arbitrary bytes. Seeds are in
// testdata/fuzz.

// spokenConn is a connection whose peer has sent everything beforehand. Then it
// closes or, if silent is set, sends nothing more, and Read fails as if a deadline had passed.
type spokenConn struct {
	in     *bytes.Reader
	step   int  // the most that a Read returns; 0: all
	silent bool // after what was sent
	closed bool
}

func (c *spokenConn) Read(b []byte) (int, error) {
	if c.step > 0 && len(b) > c.step {
		b = b[:c.step]
	}
	n, err := c.in.Read(b)
	if err == io.EOF && c.silent {
		err = os.ErrDeadlineExceeded
	}
	return n, err
}

func (c *spokenConn) Write(b []byte) (int, error)      { return len(b), nil }
func (c *spokenConn) Close() error                     { c.closed = true; return nil }
func (c *spokenConn) LocalAddr() net.Addr              { return &net.TCPAddr{IP: net.IPv6loopback} }
func (c *spokenConn) RemoteAddr() net.Addr             { return &net.TCPAddr{IP: net.IPv6loopback} }
func (c *spokenConn) SetDeadline(time.Time) error      { return nil }
func (c *spokenConn) SetReadDeadline(time.Time) error  { return nil }
func (c *spokenConn) SetWriteDeadline(time.Time) error { return nil }

// fuzzHandshake runs one side's handshake against a peer that sends b.
func fuzzHandshake(t *testing.T, accepts bool, b []byte, step uint8) {
	l := newBinder(offer("tcp"), offer("net"))
	if accepts {
		l = newBinder(offer("shm"), offer("tcp"), offer("net"))
	}
	nc := &spokenConn{in: bytes.NewReader(b), step: int(step)}
	hs := &handshake{cfg: Config{}.withDefaults(), binder: l, raw: nc, nc: nc}
	f := hs.dial
	if accepts {
		f = hs.accept
	}
	s, binding, err := hs.run(context.Background(), f)
	if allocated, arrived := cap(hs.in), len(b); allocated > 2*arrived+2*4096 {
		t.Fatalf("%d bytes allocated for a message, of %d that have arrived", allocated, arrived)
	}
	for _, fb := range l.bindings {
		used := Binding(fb) == binding
		if used != (fb.session != nil) || used != (fb.aborted == nil) {
			t.Fatalf("%s: used %v, session %v, aborted with %v", fb.offer.Provider, used, fb.session, fb.aborted)
		}
	}
	if err == nil {
		if s == nil || binding == nil || nc.closed {
			t.Fatalf("success, but session %v, binding %v, closed %v", s, binding, nc.closed)
		}
		s.Close()
	} else if s != nil || binding != nil || !nc.closed {
		t.Fatalf("%v, but session %v, binding %v, closed %v", err, s, binding, nc.closed)
	}
	if names, _ := os.ReadDir(pageDir); len(names) > 0 {
		t.Fatalf("pages are left: %v", names)
	}
	if err != nil && rejectOf(err) == nil {
		t.Fatal("no reject")
	}
}

func spoken(parts ...[]byte) []byte {
	return append(bytes.Clone(clearPreamble), bytes.Join(parts, nil)...)
}

func FuzzAccept(f *testing.F) {
	hello, attach, other := validHello(), validAttach(), validAttach()
	other.Provider = "net"
	hello.Offers = append(hello.Offers, offer("net"))
	helloMsg, decline := message(framing.KindHello, hello), message(framing.KindDecline, &framing.Decline{Text: "no"})
	f.Add(spoken(helloMsg, message(framing.KindAttach, attach), message(framing.KindConfirm, nil)), uint8(0))
	f.Add(spoken(helloMsg, decline, message(framing.KindAttach, other), message(framing.KindConfirm, nil)), uint8(1))
	f.Add(spoken(helloMsg, message(framing.KindAttach, attach), decline, message(framing.KindAttach, other), decline), uint8(7))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, step uint8) { fuzzHandshake(t, true, b, step) })
}

func FuzzDial(f *testing.F) {
	hello, attach, other := validHello(), validAttach(), validAttach()
	other.Provider = "net"
	hello.Offers = append(hello.Offers, offer("net"))
	helloMsg, selects, ready := message(framing.KindHello, hello), message(framing.KindSelect, attach), message(framing.KindReady, nil)
	decline := message(framing.KindDecline, &framing.Decline{Text: "no"})
	reject := message(framing.KindReject, &framing.Reject{Code: framing.RejectNoProvider, Text: "tcp: no; net: no"})
	f.Add(spoken(helloMsg, selects, ready), uint8(0))
	f.Add(spoken(helloMsg, selects, decline, message(framing.KindSelect, other), ready), uint8(1))
	f.Add(spoken(helloMsg, selects, decline, reject), uint8(7))
	f.Add(spoken(reject), uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, step uint8) { fuzzHandshake(t, false, b, step) })
}

// FuzzSniff: only a preamble is taken for one, as soon as that is clear and no sooner.
func FuzzSniff(f *testing.F) {
	f.Add(clearPreamble)
	f.Add([]byte("RDMA is great"))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		want := len(b) >= framing.PreambleSize && strings.HasPrefix(string(b), framing.Magic)
		b = b[:min(len(b), framing.PreambleSize)]
		for n := range len(b) + 1 {
			isFabric, known := judge(b[:n], false)
			if known && isFabric != want {
				t.Fatalf("%q of %q: fabric %v", b[:n], b, isFabric)
			}
			if open := n < framing.PreambleSize && strings.HasPrefix(framing.Magic, string(b[:min(n, len(framing.Magic))])); known == open {
				t.Fatalf("%q: known %v", b[:n], known)
			}
			if isFabric, known = judge(b[:n], true); !known || isFabric && n < framing.PreambleSize {
				t.Fatalf("all of it is %q: fabric %v, known %v", b[:n], isFabric, known)
			}
		}
	})
}

// FuzzSignals: bytes that arrive on the connection after the handshake either end the session
// or are heartbeats; they do nothing else.
func FuzzSignals(f *testing.F) {
	f.Add([]byte{1, 1, 2, 3, 4, 1, 1, 1, 1, 1, 2})
	f.Add([]byte{1, 1, 1, 1, 1, 3})
	f.Add([]byte{1, 2, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		b = b[:min(len(b), framing.HeartbeatSize*maxBeats)] // more may be too many
		nc := &spokenConn{in: bytes.NewReader(b), silent: true}
		s := newSession(&handshake{nc: nc, raw: nc, cfg: Config{}.withDefaults()}, nil)
		want := os.ErrDeadlineExceeded // nothing more comes
		for i := 0; i < len(b); i += framing.HeartbeatSize {
			if x := b[i]; x != byte(framing.SignalHeartbeat) {
				want = ErrMalformed
				if x == byte(framing.SignalGoodbye) {
					want = ErrGoodbye
				}
				break
			}
		}
		if err := s.receive(newRecorder()); !errors.Is(err, want) {
			t.Fatalf("%x: %v, not %v", b, err, want)
		}
	})
}

// FuzzPageName: no name leads out of the directory of pages, or to anything else in
// it, or creates anything there.
func FuzzPageName(f *testing.F) {
	f.Add("fabricnet-0123456789abcdef0123456789abcdef")
	f.Add("fabricnet-../../../../../../../../../../dev")
	f.Add("fabricnet-0123456789abcdef0123456789abcde\x00")
	f.Fuzz(func(t *testing.T, name string) {
		if checkPageName(name) == nil && (len(name) != len(pagePrefix)+pageNameDigits || strings.ContainsAny(name, "/.\x00")) {
			t.Fatalf("%q is taken for a page's name", name)
		}
		if page, err := OpenPage(name, [16]byte{}); err == nil {
			page.Close()
			t.Fatalf("%q is a page", name)
		}
		if names, _ := os.ReadDir(pageDir); len(names) > 0 {
			t.Fatalf("%q made %v", name, names)
		}
	})
}
