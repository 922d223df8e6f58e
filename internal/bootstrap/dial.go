package bootstrap

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/seed202c38ff/fabricnet/framing"
)

// Dial performs the dialling side's handshake on nc, a connection to a listening
// side that calls Accept. It owns nc from then on and closes it on failure. When
// ctx ends, Dial returns at once. cfg.TLS must have what tls.Client needs. If the pair that Met
// has named is joined to the listener, there is neither a Session nor an error.
func Dial(ctx context.Context, nc net.Conn, cfg Config, b Binder) (*Session, Binding, error) {
	hs := &handshake{cfg: cfg.withDefaults(), binder: b, raw: nc, nc: nc,
		ifMute: "plain TCP needs Dialer.Fallback"}
	return hs.run(ctx, hs.dial)
}

func (hs *handshake) dial(ctx context.Context) (*outcome, error) {
	if err := hs.introduce(ctx); err != nil {
		return nil, err
	}
	if err := hs.dialPreamble(ctx); err != nil {
		return nil, err
	}
	if err := hs.dialHello(); err != nil {
		return nil, err
	}
	if out, err := hs.dialJoin(ctx); out != nil || err != nil {
		return out, err
	}
	return hs.dialProviders(ctx)
}

// introduce prepares this side's hello, and the page if any offer wants one.
func (hs *handshake) introduce(ctx context.Context) error {
	hs.greet()
	if err := hs.offer(ctx); err != nil {
		return err
	}
	if !anySameHost(hs.hello.Offers) {
		return nil
	}
	page, err := CreatePage()
	if err != nil {
		hs.dropSameHost(err)
		if len(hs.hello.Offers) == 0 {
			return hs.failure(hs.reasons)
		}
		return nil
	}
	hs.page = page
	hs.hello.PageName, hs.hello.PageNonce = page.name, page.nonce
	return nil
}

func anySameHost(list []framing.Offer) bool {
	for i := range list {
		if list[i].SameHost {
			return true
		}
	}
	return false
}

// dropSameHost withdraws the offers that need a page.
func (hs *handshake) dropSameHost(why error) {
	var rest []framing.Offer
	for _, o := range hs.hello.Offers {
		if o.SameHost {
			hs.refuse(o.Provider, why)
		} else {
			rest = append(rest, o)
		}
	}
	hs.hello.Offers = rest
}

func (hs *handshake) dialPreamble(ctx context.Context) error {
	if err := hs.writePreamble(); err != nil {
		return err
	}
	p, err := hs.readPreamble()
	if err != nil {
		return err
	}
	if p.Version != framing.Version {
		return fmt.Errorf("%w: %d here, %d at the listener", ErrVersion, framing.Version, p.Version)
	}
	switch {
	case p.TLS && hs.cfg.TLS == nil:
		return ErrTLSRequired
	case !p.TLS && hs.cfg.TLS != nil:
		return ErrTLSMismatch
	case p.TLS:
		if err := hs.secure(ctx, tls.Client(hs.raw, hs.cfg.TLS)); err != nil {
			return fmt.Errorf("%w with the listener: %w", ErrTLSHandshake, err)
		}
	}
	return nil
}

func (hs *handshake) dialHello() error {
	if err := hs.write(framing.KindHello, &hs.hello); err != nil {
		return err
	}
	kind, body, err := hs.expect(framing.KindHello, framing.KindReject)
	var alert *net.OpError
	switch {
	case errors.As(err, &alert) && alert.Op == "remote error": // TLS 1.3: the listener checks our certificate only after we are done
		return fmt.Errorf("%w with the listener: %w", ErrTLSHandshake, alert)
	case err != nil:
		return err
	case kind == framing.KindReject:
		return hs.rejected(body)
	}
	if err := framing.DecodeBody(body, &hs.remote); err != nil {
		return malformed(err)
	}
	if hs.remote.Process == hs.hello.Process && hs.remote.Listener == 0 { // our own: SPEC.md section 9.3
		return fmt.Errorf("%w: it sends back what it gets", ErrNotRdmanet)
	}
	hs.meet(&hs.remote, &hs.hello)
	return hs.settlePage()
}

// settlePage removes the page's names, now that the listening side has said whether
// it has mapped the page, and the page itself if it has not.
func (hs *handshake) settlePage() error {
	echo := hs.remote.PageNonce
	switch {
	case echo == [16]byte{}:
		hs.dropPage()
	case hs.page != nil && echo == hs.page.nonce:
		hs.apart = hs.page.meet()
		return hs.page.Unlink()
	default:
		return malformed(fmt.Errorf("%w: the listener maps a page that is not ours", errPage))
	}
	return nil
}

// rejected returns why the listening side has ended the handshake.
func (hs *handshake) rejected(body []byte) error {
	hs.lost = true
	var r framing.Reject
	if err := framing.DecodeBody(body, &r); err != nil {
		return malformed(err)
	}
	err := errorOf(&r, hs.reasons)
	var ne *NegotiationError
	if errors.As(err, &ne) {
		hs.full = cmp.Or(hs.full, ne.full)
		return hs.failure(ne.Reasons)
	}
	return err
}

// dialProviders follows the listening side through the providers, each of which may be
// selected once, until one works.
func (hs *handshake) dialProviders(ctx context.Context) (*outcome, error) {
	untried := append([]framing.Offer(nil), hs.hello.Offers...)
	hs.foresee()
	for {
		kind, body, err := hs.expect(framing.KindSelect, framing.KindReject)
		if err != nil {
			return nil, err
		}
		if kind == framing.KindReject {
			return nil, hs.rejected(body)
		}
		var remote framing.Attach
		if err := framing.DecodeBody(body, &remote); err != nil {
			return nil, malformed(err)
		}
		offer, rest, err := hs.take(untried, remote.Provider)
		if err != nil {
			return nil, malformed(fmt.Errorf("the listener selects %q: %w", remote.Provider, err))
		}
		untried = rest
		if out, err := hs.dialProvider(ctx, offer, remote, hs.next(offer.Provider) != nil); out != nil || err != nil {
			return out, err
		}
	}
}

// foresee tells the binder which offer the listening side probably selects.
func (hs *handshake) foresee() {
	if first := hs.next(""); first != nil {
		hs.binder.Expect(*first, hs.local())
	}
}

// next returns the offer that the listening side, which follows its own order, probably selects
// if the one of a provider does not work, or first if there is none: nil if none is left that may work.
func (hs *handshake) next(after string) *framing.Offer {
	for _, theirs := range hs.remote.Offers[position(hs.remote.Offers, after)+1:] {
		i := position(hs.hello.Offers, theirs.Provider)
		if i < 0 {
			continue
		}
		offer := &hs.hello.Offers[i]
		if hs.mismatch(offer) == "" && (!offer.SameHost || hs.apart == nil) {
			return offer
		}
	}
	return nil
}

// take removes from the list the offer of a provider, if both sides can use it. The listening
// side is not trusted to have checked that.
func (hs *handshake) take(list []framing.Offer, provider string) (o framing.Offer, rest []framing.Offer, err error) {
	err = errors.New("it is not on offer")
	for i := range list {
		if list[i].Provider != provider {
			continue
		}
		why := hs.mismatch(&list[i])
		if why == "" {
			o = list[i]
			return o, append(list[:i], list[i+1:]...), nil
		}
		err = errors.New(why)
	}
	return o, list, err
}

// dialProvider tries one provider; more says that others could follow. A nil outcome without
// an error means that one of the sides has declined it.
func (hs *handshake) dialProvider(ctx context.Context, offer framing.Offer, remote framing.Attach, more bool) (*outcome, error) {
	if offer.SameHost && hs.apart != nil {
		return nil, hs.decline(offer.Provider, hs.apart)
	}
	actx, cancel := attempt(ctx, more)
	defer cancel()
	binding, err := hs.binder.Prepare(actx, offer, &hs.peer, hs.local(), hs.pageFor(&offer))
	if err != nil {
		return nil, hs.decline(offer.Provider, err)
	}
	declined, err := hs.dialBinding(actx, binding, remote, more)
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

// dialBinding takes a prepared provider as far as Confirm. declined says why one of the
// sides does not want it; err ends the handshake.
func (hs *handshake) dialBinding(ctx context.Context, b Binding, remote framing.Attach, more bool) (declined, err error) {
	refuse := func(err error) (error, error) { return err, hs.tell(err) }
	b.Refused(preferred(mergeReasons(hs.reasons, remote.Refused), remote.Provider, hs.remote.Offers, hs.hello.Offers))
	if err := b.Connect(ctx, remote); err != nil {
		return refuse(err)
	}
	local := b.Local()
	local.Refused = strings.Join(hs.reasons, reasonSeparator)
	if err := hs.write(framing.KindAttach, &local); err != nil {
		return nil, err
	}
	body, declined, err := hs.answer(framing.KindReady)
	if declined != nil || err != nil {
		return declined, err
	}
	if err := framing.DecodeEmpty(body); err != nil {
		return nil, malformed(err)
	}
	hs.readied = true
	switch err := hs.check(ctx, b, more); {
	case hs.lost:
		return nil, err
	case err != nil:
		return refuse(err)
	}
	if err := hs.lastWords(); err != nil {
		return nil, err
	}
	return nil, hs.write(framing.KindConfirm, nil)
}

// lastWords returns why the listening side has given up, nil if nothing has come that says so.
// Part of the message may have been read when the path check ended.
func (hs *handshake) lastWords() error {
	if !hs.goodbye && len(hs.in) == 0 {
		return nil
	}
	_, body, err := hs.expect(framing.KindReject)
	if err == nil {
		err = hs.rejected(body)
	}
	return err
}

// answer waits for a message of that kind from the listening side, or for why there is none: declined
// says that it does not want what was proposed; err ends the handshake.
func (hs *handshake) answer(want framing.Kind) (body []byte, declined, err error) {
	kind, body, err := hs.expect(want, framing.KindDecline, framing.KindReject)
	switch {
	case err != nil:
	case kind == framing.KindReject:
		err = hs.rejected(body)
	case kind == framing.KindDecline:
		declined, err = declineOf(body)
	}
	return body, declined, err
}

// declineOf reads the other side's refusal of a provider.
func declineOf(body []byte) (declined, err error) {
	var d framing.Decline
	if err := framing.DecodeBody(body, &d); err != nil {
		return nil, malformed(err)
	}
	return fmt.Errorf("declined by the peer: %s", d.Text), nil
}
