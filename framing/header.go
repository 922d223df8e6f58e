package framing

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// HeaderSize is the size of the header that starts every frame, in bytes.
const HeaderSize = 48

// MaxPayload is the largest payload that a frame can carry behind its header, in bytes.
const MaxPayload = 1<<16 - 1

// Type says what a frame is for.
type Type uint8

// The frame types. SPEC.md section 3 says what each carries.
const (
	TypeOpen   Type = iota + 1 // opens a stream towards a listener, or for the path check
	TypeAccept                 // the listener's backlog took the stream
	TypeData                   // payload bytes at Pos
	TypeLarge                  // announces an RDMA write
	TypeCredit                 // credits of any number of streams
	TypeWant                   // asks for a landing ring, or for a larger one
	TypeLease                  // grants a landing ring
	TypeRevoke                 // asks for the landing ring back
	TypeReturn                 // gives the landing ring back
	TypeFin                    // no bytes follow Pos
	TypeFinAck                 // everything up to the Fin's Pos is here
	TypeReset                  // the stream is gone
	typeEnd
)

// Flags qualify a frame.
type Flags uint8

const (
	// FlagLanded on a Large frame: the bytes are already in the landing ring, and
	// no completion data will follow.
	FlagLanded Flags = 1 << iota
	// FlagClosed on a Fin frame: the sender will not read any more either. On a
	// FinAck frame: it answers such a Fin, or a Reset.
	FlagClosed
	// FlagWant on a Data frame: it also counts as a Want frame for the same stream.
	FlagWant
	flagEnd
)

// Header starts every frame. All positions and limits are absolute: they count
// bytes from the start of the stream and never go back, so frames may arrive in
// any order and repeat what an earlier one said.
type Header struct {
	Type   Type
	Flags  Flags
	Length uint16 // payload bytes behind the header
	Peer   uint32 // the receiver's number for the sender, from the handshake
	Proof  uint64 // shows that the sender took part in the handshake
	Stream uint32 // 0 for frames that concern the peer as a whole
	Slots  uint32 // receive slots granted to the receiver so far, modulo 2^32
	Pos    uint64 // stream position; which one depends on Type
	Window uint64 // bytes of small data that the receiver may have sent so far
	Ring   uint64 // bytes of large data that the sender has released so far
}

// Errors that Decode and the payload decoders return.
var (
	ErrShort   = errors.New("framing: frame too short")
	ErrLength  = errors.New("framing: length field does not match the frame")
	ErrType    = errors.New("framing: unknown frame type")
	ErrPayload = errors.New("framing: malformed payload")
)

// Encode writes the header to the first HeaderSize bytes of b.
func (h *Header) Encode(b []byte) {
	_ = b[HeaderSize-1]
	b[0] = byte(h.Type)
	b[1] = byte(h.Flags)
	binary.LittleEndian.PutUint16(b[2:], h.Length)
	binary.LittleEndian.PutUint32(b[4:], h.Peer)
	binary.LittleEndian.PutUint64(b[8:], h.Proof)
	binary.LittleEndian.PutUint32(b[16:], h.Stream)
	binary.LittleEndian.PutUint32(b[20:], h.Slots)
	binary.LittleEndian.PutUint64(b[24:], h.Pos)
	binary.LittleEndian.PutUint64(b[32:], h.Window)
	binary.LittleEndian.PutUint64(b[40:], h.Ring)
}

// Decode reads the header of frame, which is exactly as long as the fabric
// reported, and returns the payload behind it, which aliases frame. The header is
// a copy: a peer that may still write to the memory cannot change it afterwards.
func (h *Header) Decode(frame []byte) (payload []byte, err error) {
	if len(frame) < HeaderSize {
		return nil, ErrShort
	}
	h.Type = Type(frame[0])
	h.Flags = Flags(frame[1])
	h.Length = binary.LittleEndian.Uint16(frame[2:])
	h.Peer = binary.LittleEndian.Uint32(frame[4:])
	h.Proof = binary.LittleEndian.Uint64(frame[8:])
	h.Stream = binary.LittleEndian.Uint32(frame[16:])
	h.Slots = binary.LittleEndian.Uint32(frame[20:])
	h.Pos = binary.LittleEndian.Uint64(frame[24:])
	h.Window = binary.LittleEndian.Uint64(frame[32:])
	h.Ring = binary.LittleEndian.Uint64(frame[40:])
	if h.Type == 0 || h.Type >= typeEnd || h.Flags >= flagEnd {
		return nil, ErrType
	}
	if int(h.Length) != len(frame)-HeaderSize {
		return nil, ErrLength
	}
	return frame[HeaderSize:], nil
}

var typeNames = [typeEnd]string{
	"", "open", "accept", "data", "large", "credit", "want",
	"lease", "revoke", "return", "fin", "finack", "reset",
}

func (t Type) String() string {
	if t > 0 && t < typeEnd {
		return typeNames[t]
	}
	return fmt.Sprintf("type(%d)", uint8(t))
}
