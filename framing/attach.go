package framing

import (
	"encoding/binary"
	"fmt"
)

// Limits of what an Attach may ask for.
const (
	// MinSlots is the fewest receive slots that a peer can work with: with three, a write that takes two could
	// wait for ever.
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

// MaxRule is the highest number of a rule in SPEC.md section 5.
const MaxRule = 5

func (a *Attach) fields() fields {
	return fields{
		{1, "provider", required, (*provider)(&a.Provider)},
		{2, "endpoint name", required, (*endpointName)(&a.Name)},
		{3, "peer", required, number(&a.Peer)},
		{4, "token", required, octets(a.Token[:])},
		{5, "slots", required, within{&a.Slots, MinSlots, MaxSlots}},
		{6, "eager size", required, within{&a.Eager, MinEager, MaxEager}},
		{7, "rule", required, within{&a.Rule, 0, MaxRule}},
		{8, "refused", optional, text(&a.Refused)},
	}
}

type endpointName []byte

func (v *endpointName) append(b []byte, typ uint16) ([]byte, error) {
	return appendTLV(b, typ, *v...), v.check()
}

func (v *endpointName) decode(b []byte) error {
	*v = append([]byte(nil), b...)
	return v.check()
}

func (v *endpointName) check() error {
	if len(*v) == 0 {
		return fmt.Errorf("%w: empty", ErrField)
	}
	return atMost(len(*v), MaxEndpointName)
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

func (r *Reject) fields() fields {
	return fields{
		{1, "code", required, number((*uint32)(&r.Code))},
		{2, "text", optional, text(&r.Text)},
	}
}

func (d *Decline) fields() fields { return fields{{2, "text", optional, text(&d.Text)}} }
