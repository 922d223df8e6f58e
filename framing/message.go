package framing

import (
	"encoding/binary"
	"fmt"
)

// Preamble is what each side sends first on a control connection, in clear text.
type Preamble struct {
	Version uint8 // of the protocol
	TLS     bool  // dialling side: TLS follows; listening side: TLS is required
}

// Version is the version of the protocol that this package speaks: of everything in SPEC.md. There is
// one at a time.
const Version = 10

// PreambleSize is the encoded size of a Preamble, in bytes.
const PreambleSize = 8

// Magic starts every preamble.
const Magic = "RDMN"

const preambleTLS = 1

// ErrMagic says that the bytes are not a preamble: the peer speaks another protocol.
var ErrMagic = fmt.Errorf("%w: no fabricnet preamble", ErrField)

// Append appends the encoded preamble to b.
func (p *Preamble) Append(b []byte) []byte {
	var flags byte
	if p.TLS {
		flags |= preambleTLS
	}
	return append(append(b, Magic...), p.Version, flags, 0, 0)
}

// Decode reads a preamble from exactly PreambleSize bytes. Unknown flags and
// the reserved bytes are ignored.
func (p *Preamble) Decode(b []byte) error {
	if len(b) != PreambleSize {
		return fmt.Errorf("preamble: %w", ErrTruncated)
	}
	if string(b[:len(Magic)]) != Magic {
		return ErrMagic
	}
	p.Version = b[4]
	p.TLS = b[5]&preambleTLS != 0
	return nil
}

// Kind is the kind of a handshake message.
type Kind uint8

// The handshake messages, roughly in the order in which they occur.
const (
	KindHello   Kind = iota + 1 // Hello: what a side is and offers
	KindReject                  // Reject: the listening side gives up
	KindSelect                  // Attach of the listening side: picks a provider
	KindAttach                  // Attach of the dialling side
	KindReady                   // empty: the listening side knows the dialer's endpoint
	KindConfirm                 // empty: the fabric works
	KindDecline                 // Decline: not this provider
	KindAlive                   // empty: asks whether the listening side is there, which answers with the same
	KindJoin                    // Join: asks for a further listener of a pair, or grants it
	kindEnd
)

var kindNames = [kindEnd]string{"", "hello", "reject", "select", "attach", "ready", "confirm", "decline", "alive", "join"}

func (k Kind) String() string {
	if k > 0 && k < kindEnd {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Signal begins a short message. The control connection carries signals once the
// fabric is in use.
type Signal uint8

// The signals.
const (
	SignalHeartbeat Signal = 0x01 // the sender is alive; see AppendHeartbeat
	SignalGoodbye   Signal = 0x02 // the sender ends the connection on purpose
)

// HeartbeatSize is the size of a heartbeat, in bytes, its signal included.
const HeartbeatSize = 5

// AppendHeartbeat appends a heartbeat to b. sent is how many messages its sender has sent to the
// receiver over the fabric: see SPEC.md section 9.7.
func AppendHeartbeat(b []byte, sent uint32) []byte {
	return binary.LittleEndian.AppendUint32(append(b, byte(SignalHeartbeat)), sent)
}

// DecodeHeartbeat returns what a heartbeat says was sent.
func DecodeHeartbeat(b []byte) (sent uint32, err error) {
	if len(b) != HeartbeatSize || Signal(b[0]) != SignalHeartbeat {
		return 0, fmt.Errorf("heartbeat: %w", ErrTruncated)
	}
	return binary.LittleEndian.Uint32(b[1:]), nil
}

const (
	// MaxMessage is how much may follow the length of a message, in bytes.
	MaxMessage = 1 << 16
	// LengthSize is the size of the length that starts a message, in bytes.
	LengthSize = 4
)

// Body is what a message of some Kind carries: a Hello, Attach, Reject, Decline or Join.
type Body interface{ fields() fields }

// DecodeBody reads the body of a message into m. Whatever is not printable in a text becomes '?'. A
// provider's name is the exception: it must be printable ASCII without spaces.
func DecodeBody[T any, M interface {
	*T
	Body
}](body []byte, m M) error {
	*m = *new(T)
	return m.fields().decode(body)
}

// AppendMessage appends a whole message, length first, to b. body is nil for
// messages that have none. It fails if a field breaks a limit that the receiver would enforce. Texts are
// cut off at MaxText bytes.
func AppendMessage(b []byte, k Kind, body Body) ([]byte, error) {
	start := len(b)
	out := append(b, 0, 0, 0, 0, byte(k))
	if body != nil {
		var err error
		if out, err = body.fields().append(out); err != nil {
			return b, fmt.Errorf("%v: %w", k, err)
		}
	}
	n := len(out) - start - LengthSize
	if err := atMost(n, MaxMessage); err != nil {
		return b, fmt.Errorf("%v: %w", k, err)
	}
	binary.LittleEndian.PutUint32(out[start:], uint32(n))
	return out, nil
}

// DecodeLength reads the LengthSize bytes that start a message and returns how
// many bytes follow: 1 to MaxMessage.
func DecodeLength(b []byte) (int, error) {
	if len(b) != LengthSize {
		return 0, fmt.Errorf("length: %w", ErrTruncated)
	}
	n := binary.LittleEndian.Uint32(b)
	if n > MaxMessage {
		return 0, fmt.Errorf("length: %w: %d bytes, the limit is %d", ErrTooLong, n, MaxMessage)
	}
	if n == 0 {
		return 0, fmt.Errorf("length: %w: empty message", ErrField)
	}
	return int(n), nil
}

// SplitMessage splits what follows a message's length into kind and body. The body
// aliases b.
func SplitMessage(b []byte) (Kind, []byte, error) {
	if len(b) == 0 {
		return 0, nil, fmt.Errorf("message: %w", ErrTruncated)
	}
	k := Kind(b[0])
	if k == 0 || k >= kindEnd {
		return 0, nil, fmt.Errorf("message: %w: unknown kind %d", ErrField, b[0])
	}
	return k, b[1:], nil
}

// DecodeEmpty reads the body of a message that carries nothing: Ready, Confirm or
// Alive. Unknown fields are skipped unless they are critical.
func DecodeEmpty(body []byte) error {
	return fields{}.decode(body)
}
