package framing

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"

	"github.com/seed202c38ff/fabricnet/internal/printable"
)

// Limits of what an Attach may ask for.
const (
	// MinSlots is the fewest receive slots that a peer can work with: for data and its
	// announcement, for a control frame, and the last one, which only a frame that
	// grants slots may take.
	MinSlots = 4
	// MaxSlots is the most receive slots that can be granted at a time.
	MaxSlots = 1 << 20
	// MinEager is the smallest value of Eager, in bytes: every control frame fits
	// into it, and a Credit frame of at least two entries.
	MinEager = HeaderSize + 64
	// MaxEager is the size of the largest frame there is, in bytes.
	MaxEager = HeaderSize + MaxPayload
)

// Attach says how one side's endpoint is reached, and what that side lets the
// other one do there. Select and Attach messages carry it.
type Attach struct {
	Provider string
	Name     []byte   // address of the endpoint, for the other side's address vector
	Peer     uint32   // the sender's number for the receiver, whose frames carry it as Header.Peer
	Token    [16]byte // from crypto/rand; Proof turns it into Header.Proof
	Slots    uint32   // receive slots granted at first, MinSlots to MaxSlots
	Eager    uint32   // largest frame the slots take, in bytes, MinEager to MaxEager
	Rule     uint32   // of SPEC.md section 5, by which the sender writes large data; 0: it has none
	Refused  string   // for people, at most MaxText bytes: why the sender used no other provider so far
}

const (
	attachProvider = iota + 1
	attachName
	attachPeer
	attachToken
	attachSlots
	attachEager
	attachRule
	attachRefused
)

// MaxRule is the highest number of a rule in SPEC.md section 5.
const MaxRule = 5

var attachSchema = schema{
	attachProvider: {name: "provider", required: true},
	attachName:     {name: "endpoint name", required: true},
	attachPeer:     {name: "peer", required: true},
	attachToken:    {name: "token", required: true},
	attachSlots:    {name: "slots", required: true},
	attachEager:    {name: "eager size", required: true},
	attachRule:     {name: "rule", required: true},
	attachRefused:  {name: "refused"},
}

// Append appends the body of a Select or Attach message to b. It cuts Refused off at
// MaxText bytes.
func (a *Attach) Append(b []byte) ([]byte, error) {
	if err := a.check(); err != nil {
		return b, err
	}
	b = appendString(b, attachProvider, a.Provider)
	b = appendTLV(b, attachName, a.Name...)
	b = appendUint32(b, attachPeer, a.Peer)
	b = appendTLV(b, attachToken, a.Token[:]...)
	b = appendUint32(b, attachSlots, a.Slots)
	b = appendUint32(b, attachEager, a.Eager)
	b = appendUint32(b, attachRule, a.Rule)
	if a.Refused != "" {
		b = appendString(b, attachRefused, cleanText(a.Refused))
	}
	return b, nil
}

// Decode reads the body of a Select or Attach message. Whatever is not printable in
// Refused becomes '?'.
func (a *Attach) Decode(body []byte) error {
	*a = Attach{}
	err := attachSchema.walk(body, func(typ uint16, f field) error {
		switch typ {
		case attachProvider:
			return f.string(&a.Provider, MaxName)
		case attachName:
			a.Name = append([]byte(nil), f.value...)
		case attachPeer:
			return f.uint32(&a.Peer)
		case attachToken:
			return f.id(&a.Token)
		case attachSlots:
			return f.uint32(&a.Slots)
		case attachEager:
			return f.uint32(&a.Eager)
		case attachRule:
			return f.uint32(&a.Rule)
		case attachRefused:
			return f.text(&a.Refused)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return a.check()
}

func (a *Attach) check() error {
	if err := checkProvider(a.Provider); err != nil {
		return err
	}
	if len(a.Name) == 0 {
		return fmt.Errorf("endpoint name: %w: empty", ErrField)
	}
	if err := checkLen("endpoint name", len(a.Name), MaxEndpointName); err != nil {
		return err
	}
	if a.Slots < MinSlots || a.Slots > MaxSlots {
		return fmt.Errorf("slots: %w: %d, not %d to %d", ErrField, a.Slots, MinSlots, MaxSlots)
	}
	if a.Eager < MinEager || a.Eager > MaxEager {
		return fmt.Errorf("eager size: %w: %d, not %d to %d", ErrField, a.Eager, MinEager, MaxEager)
	}
	if a.Rule > MaxRule {
		return fmt.Errorf("rule: %w: %d, not 0 to %d", ErrField, a.Rule, MaxRule)
	}
	return nil
}

// Proof returns the Header.Proof of all frames to the side whose Attach carried the
// token. It does not give the token away.
func Proof(token [16]byte) uint64 {
	sum := Derive(token, "fabricnet frame")
	return binary.LittleEndian.Uint64(sum[:])
}

// MemoryMark returns what the memory begins with that the side whose Attach carried the token
// shares with the other. It does not give the token away.
func MemoryMark(token [16]byte) [16]byte {
	sum := Derive(token, "fabricnet memory")
	return [16]byte(sum[:])
}

// RejectCode says why the listening side gave up.
type RejectCode uint32

// The reject codes. A receiver treats one that it does not know as
// RejectInternal.
const (
	RejectInternal     RejectCode = iota + 1 // anything else; see the text
	RejectNoProvider                         // no provider in common that works
	RejectUnauthorized                       // the dialling side is not welcome
	RejectMemory                             // the memory budget takes no further peer
	RejectClosing                            // the listener is shutting down
	RejectMalformed                          // the dialling side broke the protocol
	RejectPeers                              // there are as many peers as there may be
	RejectShmPeers                           // no provider works; one of them has as many peers as it may have
	RejectBusy                               // too many handshakes at a time: dial again after a while
	RejectTimeout                            // the dialling side has taken too long
)

// Reject ends a handshake.
type Reject struct {
	Code RejectCode
	Text string // for people, at most MaxText bytes
}

// Decline refuses one provider.
type Decline struct {
	Text string // for people, at most MaxText bytes
}

const (
	rejectCode  = 1
	declineText = 2 // in Reject, too
)

var (
	rejectSchema = schema{
		rejectCode:  {name: "code", required: true},
		declineText: {name: "text"},
	}
	declineSchema = schema{declineText: {name: "text"}}
)

// Append appends the body of a Reject message to b. It cuts the text off at MaxText bytes.
func (r *Reject) Append(b []byte) ([]byte, error) {
	b = appendUint32(b, rejectCode, uint32(r.Code))
	return appendString(b, declineText, cleanText(r.Text)), nil
}

// Decode reads the body of a Reject message. Whatever is not printable in the text
// becomes '?'.
func (r *Reject) Decode(body []byte) error {
	*r = Reject{}
	return rejectSchema.walk(body, func(typ uint16, f field) error {
		if typ == rejectCode {
			return f.uint32((*uint32)(&r.Code))
		}
		return f.text(&r.Text)
	})
}

// Append appends the body of a Decline message to b. It cuts the text off at MaxText bytes.
func (d *Decline) Append(b []byte) ([]byte, error) {
	return appendString(b, declineText, cleanText(d.Text)), nil
}

// Decode reads the body of a Decline message. Whatever is not printable in the text
// becomes '?'.
func (d *Decline) Decode(body []byte) error {
	*d = Decline{}
	return declineSchema.walk(body, func(_ uint16, f field) error { return f.text(&d.Text) })
}

func (f field) text(v *string) error {
	if err := f.string(v, MaxText); err != nil {
		return err
	}
	*v = cleanText(*v)
	return nil
}

// cleanText returns the text with whatever is not printable replaced, and cut off at MaxText bytes.
func cleanText(s string) string {
	s = printable.Text(s)
	if len(s) <= MaxText {
		return s
	}
	n := MaxText
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
