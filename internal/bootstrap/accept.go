package bootstrap

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
)

// Accept performs the listening side's handshake on nc, from which nothing has been
// read. It owns nc from then on and closes it on failure. When ctx ends, Accept soon
// returns; it may first tell the dialling side why. It may take up to cfg.Timeout, so a
// listener runs it in a goroutine for each connection. If another pair is joined to the
// listener, there is neither a Session nor an error.
func Accept(ctx context.Context, nc net.Conn, cfg Config, b Binder) (*Session, Binding, error) {
	hs := &handshake{cfg: cfg.withDefaults(), binder: b, raw: nc, nc: nc,
		ifMute: "a plain client that waits for the server to speak needs a plain listener"}
	return hs.run(ctx, hs.accept)
}

func (hs *handshake) accept(ctx context.Context) (*outcome, error) {
	if err := hs.acceptPreamble(ctx); err != nil {
		return nil, err
	}
	out, err := hs.acceptDialer(ctx)
	switch cause := context.Cause(ctx); {
	case err == nil || hs.lost:
	case cause == nil:
		hs.reject(err, lingerTime)
	case errors.Is(cause, ErrClosing), errors.Is(cause, ErrBusy):
		hs.rejectLate(cause, closingTime)
	case errors.Is(cause, ErrHandshakeTimeout):
		why := hs.explain(ctx, err)
		if errors.Is(err, os.ErrDeadlineExceeded) { // so nothing has come that could destroy what is sent now
			hs.rejectLate(why, 0)
		} else { // it was this side that took too long
			hs.rejectLate(errors.New(why.Error()), closingTime)
		}
	}
	return out, err
}

func (hs *handshake) acceptDialer(ctx context.Context) (*outcome, error) {
	if err := hs.acceptHello(ctx); err != nil {
		return nil, err
	}
	if out, err := hs.acceptJoin(ctx); out != nil || err != nil {
		return out, err
	}
	return hs.acceptProviders(ctx)
}

func (hs *handshake) acceptPreamble(ctx context.Context) error {
	p, err := hs.readPreamble()
	if err != nil {
		return err
	}
	// Sent also to a dialling side that cannot go on: it learns from this what is wrong.
	if err := hs.writePreamble(); err != nil {
		return err
	}
	mismatch := error(nil)
	switch {
	case p.Version != framing.Version:
		mismatch = fmt.Errorf("%w: %d here, %d at the dialer", ErrVersion, framing.Version, p.Version)
	case hs.cfg.TLS != nil && !p.TLS:
		mismatch = ErrTLSRequired
	case hs.cfg.TLS == nil && p.TLS:
		mismatch = ErrTLSMismatch
	}
	if mismatch != nil {
		hs.linger(lingerTime)
		return mismatch
	}
	if hs.cfg.TLS != nil {
		if err := hs.secure(ctx, tls.Server(hs.raw, hs.cfg.TLS)); err != nil {
			return fmt.Errorf("%w with the dialer: %w", ErrTLSHandshake, err)
		}
	}
	return nil
}

func (hs *handshake) acceptHello(ctx context.Context) error {
	_, body, err := hs.expect(framing.KindHello)
	if err != nil {
		return err
	}
	if err := framing.DecodeBody(body, &hs.remote); err != nil {
		return malformed(err)
	}
	hs.greet()
	hs.meet(&hs.hello, &hs.remote)
	switch err := hs.binder.Authorize(ctx, &hs.peer); {
	case err == nil:
	case ctx.Err() != nil:
		return errors.New("waiting for Authorize") // it has not refused the peer
	default:
		return err
	}
	if err := hs.offer(ctx); err != nil {
		return err
	}
	hs.mapPage()
	return hs.write(framing.KindHello, &hs.hello)
}

// mapPage maps the dialling side's page, if it has one, both may be on one host, and this side,
// too, offers a provider that needs it. A failure costs only the providers of one host.
func (hs *handshake) mapPage() {
	if hs.remote.PageName == "" || hs.otherHost || !anySameHost(hs.hello.Offers) {
		return
	}
	page, err := OpenPage(hs.remote.PageName, hs.remote.PageNonce)
	if errors.Is(err, fs.ErrNotExist) && len(hs.doubts) > 0 {
		err = fmt.Errorf("%w (%s)", err, strings.Join(hs.doubts, ", "))
	}
	if err != nil {
		hs.pageErr = err
		return
	}
	hs.page = page
	hs.hello.PageNonce = page.nonce
}

// acceptProviders walks through the providers that both sides share until one
// works.
func (hs *handshake) acceptProviders(ctx context.Context) (*outcome, error) {
	for _, offer := range hs.candidates() {
		if out, err := hs.acceptProvider(ctx, offer); out != nil || err != nil {
			return out, err
		}
	}
	return nil, hs.failure(hs.reasons)
}

// acceptProvider tries one provider. A nil outcome without an error means that one of the
// sides has declined it.
func (hs *handshake) acceptProvider(ctx context.Context, offer framing.Offer) (*outcome, error) {
	binding, err := hs.binder.Prepare(ctx, offer, &hs.peer, hs.local(), hs.pageFor(&offer))
	if err != nil {
		if errors.Is(err, ErrClosing) {
			return nil, err
		}
		hs.refuse(offer.Provider, err)
		return nil, nil
	}
	declined, err := hs.acceptBinding(ctx, binding)
	switch {
	case err != nil:
		binding.Abort(err)
		return nil, err
	case declined != nil:
		hs.refuse(offer.Provider, declined)
		binding.Abort(declined)
		return nil, nil
	}
	return &outcome{offer, binding}, nil
}

// acceptBinding takes a prepared provider as far as the dialling side's Confirm.
// declined says why one of the sides does not want it; err ends the handshake.
func (hs *handshake) acceptBinding(ctx context.Context, b Binding) (declined, err error) {
	local := b.Local()
	local.Refused = strings.Join(hs.reasons, reasonSeparator)
	if err := hs.write(framing.KindSelect, &local); err != nil {
		return nil, err
	}
	kind, body, err := hs.expect(framing.KindAttach, framing.KindDecline)
	if err != nil {
		return nil, err
	}
	if kind == framing.KindDecline {
		return declineOf(body)
	}
	var remote framing.Attach
	if err := framing.DecodeBody(body, &remote); err != nil {
		return nil, malformed(err)
	}
	if remote.Provider != local.Provider {
		return nil, malformed(fmt.Errorf("the dialer attaches to %q instead of %q", remote.Provider, local.Provider))
	}
	b.Refused(preferred(mergeReasons(hs.reasons, remote.Refused), local.Provider, hs.hello.Offers, hs.remote.Offers))
	if err := b.Connect(ctx, remote); err != nil {
		return err, hs.tell(err)
	}
	if err := hs.write(framing.KindReady, nil); err != nil {
		return nil, err
	}
	hs.ready = true
	for {
		kind, body, err = hs.expect(framing.KindConfirm, framing.KindDecline, framing.KindAlive)
		if err != nil {
			return nil, err
		}
		if kind == framing.KindDecline {
			hs.ready = false
			return declineOf(body)
		}
		if err := framing.DecodeEmpty(body); err != nil {
			return nil, malformed(err)
		}
		if kind == framing.KindConfirm {
			return nil, b.Admit()
		}
		if err := hs.write(framing.KindAlive, nil); err != nil {
			return nil, err
		}
	}
}

// reject tells the dialling side why the handshake is over. This may not arrive. Once the
// dialling side may have confirmed, a goodbye comes first, to end the Session that it may have.
func (hs *handshake) reject(err error, limit time.Duration) {
	if hs.ready {
		if _, err := hs.nc.Write([]byte{byte(framing.SignalGoodbye)}); err != nil {
			return
		}
	}
	if hs.write(framing.KindReject, rejectOf(err)) == nil {
		hs.linger(limit)
	}
}

// rejectLate is reject for a handshake that the context has ended.
func (hs *handshake) rejectLate(err error, limit time.Duration) {
	<-hs.struck                                        // the context's deadline must not be set after this one
	_ = hs.raw.SetDeadline(time.Now().Add(lingerTime)) // longer than closingTime, as a busy host may make this goroutine wait
	hs.reject(err, limit)
}

// lingerTime and lingerBytes bound how long this side goes on reading from a refused peer, and
// closingTime how long that holds up a listener that is closing.
const (
	lingerTime  = time.Second
	closingTime = 100 * time.Millisecond
	lingerBytes = framing.MaxMessage
)

// linger gives the peer time to read the last message. Closing a TCP connection with
// unread input sends a reset, which may overtake the message and destroy it.
func (hs *handshake) linger(limit time.Duration) {
	if tc, ok := hs.nc.(*tls.Conn); ok {
		_ = tc.CloseWrite()
	}
	if cw, ok := hs.raw.(interface{ CloseWrite() error }); ok {
		_ = cw.CloseWrite()
	}
	// Use a timer, not a later deadline: the context sets a deadline, too, and must win.
	t := time.AfterFunc(limit, func() { _ = hs.raw.SetDeadline(past) })
	defer t.Stop()
	_, _ = io.CopyN(io.Discard, hs.raw, lingerBytes)
}
