package bootstrap

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
)

// meet takes in that both sides have sent their Hello.
func (hs *handshake) meet(listener, dialer *framing.Hello) {
	hs.peer.Hello = &hs.remote
	hs.compareHosts(listener, dialer)
}

// greet adopts the Binder's hello, and fills in what the Binder may leave open.
func (hs *handshake) greet() {
	h := hs.binder.Hello()
	h.PageName, h.PageNonce = "", [16]byte{}
	h.Silence = uint32(min(max(hs.cfg.DeadAfter.Milliseconds(), 1), math.MaxUint32))
	hs.hello = h
}

// offer adds the Binder's offers to the hello.
func (hs *handshake) offer(ctx context.Context) error {
	if err := hs.binder.Offer(ctx, hs.local(), &hs.hello); err != nil {
		return err
	}
	for _, text := range hs.hello.Unoffered {
		if provider, reason, found := strings.Cut(text, ": "); found {
			hs.refuse(provider, reason)
		}
	}
	return nil
}

// hasReason reports whether an unoffered provider comes with a reason. Without one, it is
// just that nobody has named it.
func hasReason(unoffered string) bool { return strings.Contains(unoffered, ": ") }

// candidates lists this side's offers that the peer shares, in this side's
// order, and notes why the others cannot be used.
func (hs *handshake) candidates() []framing.Offer {
	var shared []framing.Offer
	for _, own := range hs.hello.Offers {
		if reason := hs.mismatch(&own); reason != "" {
			hs.refuse(own.Provider, reason)
			continue
		}
		shared = append(shared, own)
	}
	for _, theirs := range hs.remote.Offers {
		if position(hs.hello.Offers, theirs.Provider) < 0 {
			hs.refuse(theirs.Provider, "the listener does not offer it")
		}
	}
	return shared
}

// mismatch says why an offer of this side cannot be used with the peer, "" if it can.
func (hs *handshake) mismatch(own *framing.Offer) string {
	reason := notShared
	for i := range hs.remote.Offers {
		theirs := &hs.remote.Offers[i]
		if theirs.Provider != own.Provider {
			continue
		}
		if own.SameHost && theirs.SameHost { // before what could be mended in vain
			if reason = hs.separated(); reason != "" {
				return reason
			}
		}
		if reason = incompatible(own, theirs); reason == "" {
			break
		}
	}
	switch {
	case reason != "" || !own.SameHost:
		return reason
	case hs.pageErr != nil:
		return hs.pageErr.Error()
	case hs.page == nil:
		return "the two sides share no memory for wake-ups"
	}
	return ""
}

// separated says why the two sides can share no memory whatever they offer, "" if nothing is known.
func (hs *handshake) separated() string {
	switch {
	case hs.otherHost:
		return "the two sides are on different hosts"
	case hs.remote.UID != hs.hello.UID:
		return fmt.Sprintf("the two sides run as different users (%d and %d)", hs.hello.UID, hs.remote.UID)
	}
	return ""
}

// incompatible says why two offers of one provider cannot talk to each other, "" if they can.
func incompatible(own, theirs *framing.Offer) string {
	switch {
	case own.SameHost != theirs.SameHost:
		return "only one side takes it for a provider of one host"
	case own.Protocol != theirs.Protocol || own.ProtocolVersion != theirs.ProtocolVersion:
		return fmt.Sprintf("wire protocols differ: %d version %d and %d version %d",
			own.Protocol, own.ProtocolVersion, theirs.Protocol, theirs.ProtocolVersion)
	case own.SameHost && own.Library != theirs.Library:
		// Processes that share memory share the layout of the library's structures.
		return fmt.Sprintf("library versions differ: %q and %q", own.Library, theirs.Library)
	case own.Settings != theirs.Settings:
		return fmt.Sprintf("settings of libfabric differ: %q and %q", own.Settings, theirs.Settings)
	}
	return ""
}

// pageFor is the page to use with an offer, nil if it needs none.
func (hs *handshake) pageFor(offer *framing.Offer) *Page {
	if offer.SameHost {
		return hs.page
	}
	return nil
}

// finish makes a session of a handshake that has succeeded with the offer.
func (hs *handshake) finish(offer *framing.Offer) *Session {
	s := newSession(hs, hs.pageFor(offer))
	if s.page == nil {
		hs.dropPage()
	}
	return s
}

func (hs *handshake) dropPage() {
	if hs.page != nil {
		hs.page.Close()
		hs.page = nil
	}
}

// attempt returns a context for one provider. If more could follow, it leaves half of the
// remaining time to them.
func attempt(ctx context.Context, more bool) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok || !more {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)/2)
}
