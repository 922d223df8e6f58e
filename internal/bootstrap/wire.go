package bootstrap

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/printable"
)

// handshake is one side's negotiation on one connection.
type handshake struct {
	cfg    Config
	binder Binder
	raw    net.Conn // the connection as given
	nc     net.Conn // raw, or TLS over it
	in     []byte   // what has arrived of the next message
	asked  bool     // on the dialling side: the listening side owes an Alive

	ifMute string // what this side can do about a peer that says nothing

	hello     framing.Hello // this side's
	remote    framing.Hello
	peer      Peer     // settled by agree
	otherHost bool     // settled by agree, as are the doubts about that
	doubts    []string // which side cannot tell its host, and why
	page      *Page    // mapped by both sides, or nil
	pageErr   error    // why the listening side could not map it
	apart     error    // why the dialling side does not use it
	reasons   []string // why providers were not used
	starved   bool     // one of them was not, for lack of memory
	full      string   // where one of them has too many peers: see NegotiationError

	lost    bool          // the connection failed, or the listening side is done: there is nobody left to tell why
	ready   bool          // on the listening side: Ready is sent, so the other side may regard the handshake as over
	readied bool          // on the dialling side: Ready has come
	goodbye bool          // and after it a goodbye
	struck  chan struct{} // closed when the context has ended and its deadline is set

	ended func() error // why the context has ended, nil if it has not; set by run

	mu   sync.Mutex // guards over, and the read deadline that goes with it
	over bool       // the context has ended
}

// outcome is what a handshake agreed on.
type outcome struct {
	offer   framing.Offer
	binding Binding // nil if a pair that is there already was joined to the listener
}

// run performs f within the time-out and the context. When either ends, a deadline in
// the past ends f at once, and no other deadline takes its place. The connection is
// closed unless f succeeds.
func (hs *handshake) run(ctx context.Context, f func(ctx context.Context) (*outcome, error)) (*Session, Binding, error) {
	tctx, cancel := context.WithTimeoutCause(ctx, hs.cfg.Timeout, ErrHandshakeTimeout)
	defer cancel()
	hs.struck, hs.ended = make(chan struct{}), tctx.Err
	stop := context.AfterFunc(tctx, func() {
		hs.mu.Lock()
		defer hs.mu.Unlock()
		hs.over = true
		_ = hs.raw.SetDeadline(past)
		close(hs.struck)
	})
	tune(hs.raw, hs.cfg)
	out, err := f(tctx)
	if !stop() && err == nil {
		err = context.Cause(tctx) // the deadline in the past may be set at any moment
		if out.binding != nil {
			out.binding.Abort(err)
		}
	}
	if err != nil || out.binding == nil {
		hs.raw.Close()
		hs.dropPage()
		if err == nil { // it has joined
			return nil, nil, nil
		}
		// Texts of the handshake's messages are printable, others are not: names in certificates, for instance.
		return nil, nil, printable.Error(hs.explain(tctx, err))
	}
	s := hs.finish(&out.offer)
	out.binding.Attached(s)
	return s, out.binding, nil
}

// interrupt ends a Read, and resume allows the next, unless the context has ended. A Write
// goes on: after one that has timed out, crypto/tls allows no other.
func (hs *handshake) interrupt() { _ = hs.raw.SetReadDeadline(past) }

func (hs *handshake) resume() {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if !hs.over {
		_ = hs.raw.SetReadDeadline(time.Time{})
	}
}

// past is a deadline that ends all reading and writing.
var past = time.Unix(1, 0)

// explain puts what ended a handshake from outside in front of the failure that it
// caused. Only the text of the failure is kept: because of the deadline in the past it is
// a time-out, even if the context was cancelled.
func (hs *handshake) explain(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if cause == nil {
		return err
	}
	text, said := strings.CutSuffix(err.Error(), cause.Error()) // calls that it has ended say so themselves
	if said {
		text = strings.TrimSuffix(text, ": ")
	}
	if errors.Is(cause, context.DeadlineExceeded) {
		cause = fmt.Errorf("%w (%w)", ErrHandshakeTimeout, cause)
	}
	switch mute := errors.Is(err, ErrMute); {
	case text == "":
		return cause
	case mute && errors.Is(cause, ErrHandshakeTimeout):
		return fmt.Errorf("%w: %w; %s", cause, ErrMute, hs.ifMute)
	case mute:
		return fmt.Errorf("%w: %w", cause, ErrMute)
	}
	return fmt.Errorf("%w: %s", cause, text)
}

// secure performs the handshake of TLS and goes on over it.
func (hs *handshake) secure(ctx context.Context, tc *tls.Conn) error {
	if err := tc.HandshakeContext(ctx); err != nil {
		return err
	}
	state := tc.ConnectionState()
	hs.nc, hs.peer.TLS = tc, &state
	return nil
}

// writePreamble sends this side's preamble. Preambles are the only bytes before TLS.
func (hs *handshake) writePreamble() error {
	p := framing.Preamble{Version: framing.Version, TLS: hs.cfg.TLS != nil}
	_, err := hs.raw.Write(p.Append(nil))
	if err != nil {
		return fmt.Errorf("sending the preamble: %w", err)
	}
	return nil
}

func (hs *handshake) readPreamble() (framing.Preamble, error) {
	var p framing.Preamble
	var buf [framing.PreambleSize]byte
	n, err := readWhilePreamble(hs.raw, buf[:])
	if n > 0 && !prefixMatches(buf[:n]) {
		return p, fmt.Errorf("%w: it sent %q", ErrNotRdmanet, buf[:n])
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return p, fmt.Errorf("%w: %w", ErrMute, err)
	}
	if err == io.EOF && n > 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		// Servers of other protocols close or reset the connection at the first odd byte.
		return p, fmt.Errorf("%w: it closed the connection after %d bytes of the preamble: %w", ErrNotRdmanet, n, err)
	}
	if err := p.Decode(buf[:]); err != nil {
		return p, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return p, nil
}

// read reads one message.
func (hs *handshake) read() (framing.Kind, []byte, error) {
	if err := hs.fill(framing.LengthSize); err != nil {
		return 0, nil, hs.readError(err)
	}
	switch goodbye, err := hs.farewell(); {
	case err != nil:
		return 0, nil, hs.readError(err)
	case goodbye:
		hs.in, hs.goodbye = hs.in[1:], true
		return hs.read()
	}
	n, err := framing.DecodeLength(hs.in[:framing.LengthSize])
	if err != nil {
		return 0, nil, malformed(err)
	}
	if err := hs.fill(framing.LengthSize + n); err != nil {
		return 0, nil, hs.readError(err)
	}
	msg := hs.in[framing.LengthSize:]
	hs.in = nil
	kind, body, err := framing.SplitMessage(msg)
	if err != nil {
		return 0, nil, malformed(err)
	}
	return kind, body, nil
}

// farewell reports whether a goodbye precedes the message, which is then a Reject: see reject.
// Otherwise the byte is the first of a length, and the byte after the length is a kind, which is
// never 0. After a goodbye that byte is the last one of the Reject's length, which is always 0.
func (hs *handshake) farewell() (bool, error) {
	if !hs.readied || hs.goodbye || hs.in[0] != byte(framing.SignalGoodbye) {
		return false, nil
	}
	err := hs.fill(framing.LengthSize + 1)
	return err == nil && hs.in[framing.LengthSize] == 0, err
}

// fill reads until n bytes of the message are there. It does so in steps, so that a peer cannot
// make this side allocate much more than the peer really sends. What has been read before an
// interrupt stays for the next call.
func (hs *handshake) fill(n int) error {
	const step = 4096
	for len(hs.in) < n {
		k := min(step, n-len(hs.in))
		at := len(hs.in)
		hs.in = append(hs.in, make([]byte, k)...)
		got, err := io.ReadFull(hs.nc, hs.in[at:])
		hs.in = hs.in[:at+got]
		if err != nil {
			return err
		}
	}
	return nil
}

// expect reads a message, which must be of one of the kinds.
func (hs *handshake) expect(kinds ...framing.Kind) (framing.Kind, []byte, error) {
	kind, body, err := hs.read()
	if err != nil {
		return 0, nil, fmt.Errorf("waiting for %s: %w", anyOf(kinds), err)
	}
	for _, k := range kinds {
		if k == kind {
			return kind, body, nil
		}
	}
	if kind == framing.KindAlive && hs.asked { // a late answer, after a provider was given up
		hs.asked = false
		return hs.expect(kinds...)
	}
	return 0, nil, malformed(fmt.Errorf("%v instead of %s", kind, anyOf(kinds)))
}

func anyOf(kinds []framing.Kind) string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.String()
	}
	return strings.Join(names, " or ")
}

func (hs *handshake) write(kind framing.Kind, body framing.Body) error {
	msg, err := framing.AppendMessage(nil, kind, body)
	if err != nil {
		return err
	}
	if n, err := hs.nc.Write(msg); err != nil {
		hs.lost = n > 0 || !errors.Is(err, os.ErrDeadlineExceeded)
		return fmt.Errorf("sending %v: %w", kind, err)
	}
	return nil
}

// decline remembers why the current provider is refused, and tells the other side.
func (hs *handshake) decline(provider string, err error) error {
	hs.refuse(provider, err)
	return hs.tell(err)
}

// tell declines a provider. If the time for the handshake is over, what took it is worth more than
// that nobody could be told.
func (hs *handshake) tell(why error) error {
	if hs.ended() != nil {
		return why
	}
	err := hs.write(framing.KindDecline, &framing.Decline{Text: why.Error()})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return why
	}
	return err
}

// refuse remembers why a provider is not used. reason is an error or a text.
func (hs *handshake) refuse(provider string, reason any) {
	if err, ok := reason.(error); ok {
		hs.starved = hs.starved || errors.Is(err, ErrMemory)
		if errors.Is(err, ErrTooManyShmPeers) {
			hs.full = fullHere
		}
	}
	text := strings.ReplaceAll(printable.Line(fmt.Sprint(reason)), reasonSeparator, ", ")
	hs.reasons = append(hs.reasons, provider+": "+text)
}

// failure is the error of a handshake that ends without a provider.
func (hs *handshake) failure(reasons []string) error {
	if hs.starved {
		return fmt.Errorf("%w: %s", ErrMemory, strings.Join(reasons, reasonSeparator))
	}
	return &NegotiationError{Reasons: reasons, own: &hs.hello, remote: &hs.remote, full: hs.full}
}

// malformed returns the error for what cannot be decoded.
func malformed(err error) error {
	return fmt.Errorf("%w: %w", ErrMalformed, err)
}

// readError notes that the connection has failed, unless a deadline, such as the
// context's, has ended the wait.
func (hs *handshake) readError(err error) error {
	hs.lost = !errors.Is(err, os.ErrDeadlineExceeded)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the peer closed the connection: %w", io.ErrUnexpectedEOF)
	}
	return err
}

// local is the local address, by which providers choose their device; the zero Addr if
// the connection has none.
func (hs *handshake) local() netip.Addr {
	if a, ok := hs.raw.LocalAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// tune lets the kernel notice a dead peer, if nc is a TCP connection or one over it.
func tune(nc net.Conn, cfg Config) {
	for {
		switch c := nc.(type) {
		case *net.TCPConn:
			if cfg.KeepAlive.Enable { // a user time-out would override it, tcp(7)
				_ = c.SetKeepAliveConfig(cfg.KeepAlive)
				return
			}
			_ = c.SetKeepAliveConfig(net.KeepAliveConfig{
				Enable: true, Idle: cfg.DeadAfter / 3, Interval: cfg.DeadAfter / 3, Count: 3,
			})
			setUserTimeout(c, cfg.DeadAfter)
			return
		case *tls.Conn:
			nc = c.NetConn()
		default:
			return
		}
	}
}
