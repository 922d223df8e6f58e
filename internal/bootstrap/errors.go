package bootstrap

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/engine"
)

// Errors of Dial, Accept and Session. What these return wraps one of the following, or
// the error of the context, of the connection or of the Binder.
var (
	// ErrNotRdmanet: the peer speaks another protocol.
	ErrNotRdmanet = errors.New("the peer does not speak the rdmanet protocol")
	// ErrVersion: the two sides speak different versions of the protocol.
	ErrVersion = errors.New("protocol versions differ, update the older side")
	// ErrNoProvider: the two sides have no provider in common that works. It comes as a
	// *NegotiationError.
	ErrNoProvider = errors.New("no provider that works on both sides")
	// ErrUnauthorized: the listening side does not admit the dialling side.
	ErrUnauthorized = errors.New("not authorised by the listener")
	// ErrTLSRequired: the listening side demands TLS, the dialling side has none.
	ErrTLSRequired = errors.New("the listener requires TLS, the dialer has no TLS configuration")
	// ErrTLSMismatch: the dialling side asks for TLS, the listening side has none.
	ErrTLSMismatch = errors.New("the dialer asks for TLS, the listener has no TLS configuration")
	// ErrTLSHandshake: both sides have TLS, but do not agree, on a certificate for instance.
	ErrTLSHandshake = errors.New("TLS handshake")
	// ErrMalformed: the peer broke the protocol.
	ErrMalformed = errors.New("malformed handshake message")
	// ErrMemory: the memory budget of one of the sides has no room for another peer.
	ErrMemory = engine.ErrMemory
	// ErrClosing: the listening side is shutting down.
	ErrClosing = errors.New("the listener is closing")
	// ErrTooManyPeers: the listening side has no room for another peer.
	ErrTooManyPeers = errors.New("too many peers")
	// ErrTooManyShmPeers: no provider works, and one of them does not because one of the sides
	// already has as many peers that take an endpoint each as it may have. It comes as a
	// *NegotiationError.
	ErrTooManyShmPeers = errors.New("too many peers over shared memory")
	// ErrBusy: the listening side has too many handshakes under way. It is worth trying again.
	ErrBusy = errors.New("the listener is busy")
	// ErrRejected: the listening side gave up for a reason of its own.
	ErrRejected = errors.New("rejected by the listener")

	// ErrMute: the peer sends nothing, or only a part of a preamble.
	ErrMute = errors.New("no preamble from the peer")
	// ErrSilent: the fabric brings nothing to or from a peer that answers over TCP.
	ErrSilent = errors.New("the fabric is silent, though the peer answers over TCP")

	// ErrGoodbye: the peer closed the session in good order.
	ErrGoodbye = errors.New("the peer said goodbye")

	// ErrHandshakeTimeout: the handshake did not end in time. It is an
	// os.ErrDeadlineExceeded, and a net.Error whose Timeout is true.
	ErrHandshakeTimeout error = &timeoutError{"handshake timed out"}
	// ErrHeartbeat: the peer has been silent for too long, or no longer takes anything.
	// It is an os.ErrDeadlineExceeded, and a net.Error whose Timeout is true.
	ErrHeartbeat error = &timeoutError{"no sign of life from the peer"}
)

type timeoutError struct{ text string }

func (e *timeoutError) Error() string        { return e.text }
func (e *timeoutError) Timeout() bool        { return true }
func (e *timeoutError) Temporary() bool      { return true }
func (e *timeoutError) Is(target error) bool { return target == os.ErrDeadlineExceeded }

// NegotiationError is an ErrNoProvider that says what was tried, and what else the two
// sides have.
type NegotiationError struct {
	// Reasons has an entry for each provider, with what spoke against it.
	Reasons []string

	own, remote *framing.Hello // nil if not known
	full        string         // where there are too many peers over shm: then it is an ErrTooManyShmPeers, too; "" if nowhere
}

// Values of NegotiationError.full.
const (
	fullHere  = "here"
	fullThere = "at the peer"
)

func (e *NegotiationError) Error() string {
	text := ErrNoProvider.Error()
	if e.full != "" {
		text = fmt.Sprintf("%v %s", ErrTooManyShmPeers, e.full)
	}
	if len(e.Reasons) > 0 {
		text += ": " + strings.Join(e.Reasons, reasonSeparator)
	}
	if e.own == nil {
		return text
	}
	for _, side := range []struct {
		where string
		hello *framing.Hello
	}{{"here", e.own}, {"at the peer", e.remote}} {
		if list := slices.DeleteFunc(slices.Clone(side.hello.Unoffered), hasReason); len(list) > 0 {
			text += fmt.Sprintf("; not offered %s: %s", side.where, strings.Join(list, ", "))
		}
	}
	if slices.ContainsFunc(e.Reasons, func(r string) bool { return strings.HasPrefix(r, NoLibrary) }) {
		return text + "; mend that there, or " + fallback
	}
	if e.full != "" {
		text += fmt.Sprintf("; raise Transport.MaxShmPeers %s, close conns, or", e.full)
		return text + " " + Remedy(e.shared())
	}
	return text + "; " + Remedy(e.shared())
}

func (e *NegotiationError) Unwrap() []error {
	if e.full != "" {
		return []error{ErrTooManyShmPeers, ErrNoProvider}
	}
	return []error{ErrNoProvider}
}

// shared lists the providers that both sides have and would use if they were named. Those
// that one of the sides offers come first.
func (e *NegotiationError) shared() (names []string) {
	for _, sides := range [][2]*framing.Hello{{e.own, e.remote}, {e.remote, e.own}} {
		for _, offer := range sides[0].Offers {
			if slices.Contains(sides[1].Unoffered, offer.Provider) && !slices.Contains(names, offer.Provider) {
				names = append(names, offer.Provider)
			}
		}
	}
	for _, name := range e.own.Unoffered {
		if !hasReason(name) && slices.Contains(e.remote.Unoffered, name) {
			names = append(names, name)
		}
	}
	return names
}

// NoLibrary is how the reason of a listening side without libfabric begins.
const NoLibrary = "libfabric: not at the listener: "

// fallback is what is left to do if no provider can be used.
const fallback = "choose Dialer.Fallback, and ListenConfig.AcceptTCP, for plain TCP"

// Remedy says what to do if no provider is in use although the shared ones could be.
func Remedy(shared []string) string {
	if len(shared) == 0 {
		return "name a provider that both sides have, on both sides (Providers or RDMANET_PROVIDERS), or " + fallback
	}
	return fmt.Sprintf("name %s on both sides (Providers or RDMANET_PROVIDERS), or %s", strings.Join(shared, " or "), fallback)
}

// reasonSeparator joins reasons in the text of a Reject.
const reasonSeparator = "; "

// notShared is all that a side knows about a provider that only one of them offers.
const notShared = "only one side offers it"

// mergeReasons adds the other side's reasons, which are in text, for those providers about
// which this side knows nothing itself.
func mergeReasons(own []string, text string) []string {
	merged := slices.Clone(own)
	known := make(map[string]int)
	for i, r := range own {
		provider, _, _ := strings.Cut(r, ": ")
		known[provider] = i
	}
	for r := range strings.SplitSeq(text, reasonSeparator) {
		provider, _, _ := strings.Cut(r, ": ")
		i, found := known[provider]
		switch {
		case r == "":
		case !found:
			merged = append(merged, r)
		case own[i] == provider+": "+notShared: // the other side knows why it does not offer it
			merged[i] = r
		}
	}
	return merged
}

// preferred leaves out the reasons for providers that come after the one in use, in the
// listening side's order, or, if the listening side does not offer them, in the dialling
// side's.
func preferred(reasons []string, used string, listener, dialer []framing.Offer) []string {
	return slices.DeleteFunc(slices.Clone(reasons), func(reason string) bool {
		provider, _, _ := strings.Cut(reason, ": ")
		for _, order := range [][]framing.Offer{listener, dialer} {
			if at := position(order, provider); at >= 0 {
				return at >= position(order, used)
			}
		}
		return false
	})
}

// position is the index of the first offer of a provider in a list, -1 if there is none.
func position(list []framing.Offer, provider string) int {
	return slices.IndexFunc(list, func(o framing.Offer) bool { return o.Provider == provider })
}

// rejects pairs errors with the codes by which the listening side tells the peer of them.
var rejects = []struct {
	err  error
	code framing.RejectCode
}{
	{ErrNoProvider, framing.RejectNoProvider},
	{ErrMemory, framing.RejectMemory},
	{ErrClosing, framing.RejectClosing},
	{ErrMalformed, framing.RejectMalformed},
	{ErrUnauthorized, framing.RejectUnauthorized},
	{ErrTooManyPeers, framing.RejectPeers},
	{ErrBusy, framing.RejectBusy},
	{ErrHandshakeTimeout, framing.RejectTimeout},
}

// rejectOf is what the peer is told about err.
func rejectOf(err error) *framing.Reject {
	var ne *NegotiationError
	if errors.As(err, &ne) {
		code := framing.RejectNoProvider
		if ne.full == fullHere {
			code = framing.RejectShmPeers
		}
		return &framing.Reject{Code: code, Text: strings.Join(ne.Reasons, reasonSeparator)}
	}
	for _, r := range rejects {
		if errors.Is(err, r.err) {
			text := strings.TrimPrefix(err.Error(), r.err.Error())
			return &framing.Reject{Code: r.code, Text: strings.TrimPrefix(text, ": ")}
		}
	}
	return &framing.Reject{Code: framing.RejectInternal, Text: err.Error()}
}

// errorOf is what a Reject from the peer means here. reasons are this side's
// own, for providers that it has refused.
func errorOf(r *framing.Reject, reasons []string) error {
	switch r.Code {
	case framing.RejectNoProvider:
		return &NegotiationError{Reasons: mergeReasons(reasons, r.Text)}
	case framing.RejectShmPeers:
		return &NegotiationError{Reasons: mergeReasons(reasons, r.Text), full: fullThere}
	}
	sentinel := ErrRejected
	for _, x := range rejects {
		if x.code == r.Code {
			sentinel = x.err
		}
	}
	switch {
	case errors.Is(sentinel, ErrMemory) || errors.Is(sentinel, ErrHandshakeTimeout): // it may happen on either side
		return fmt.Errorf("the listener's %w: %s", sentinel, r.Text)
	case r.Text == "":
		return sentinel
	}
	return fmt.Errorf("%w: %s", sentinel, r.Text)
}
