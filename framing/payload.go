package framing

import "encoding/binary"

// Large announces one write of the sender, by RDMA or by copy, into the stream's landing ring.
// The frame's Pos is the stream position of the write's first byte.
type Large struct {
	Lease  uint16 // index of the lease at the receiver
	Seq    uint16 // number of the write within the lease, modulo 2^15
	Length uint32 // bytes written
	Ring   uint64 // ring position of the first byte, over all leases, not wrapped
}

// LargeSize is the encoded size of a Large.
const LargeSize = 16

// Encode writes l to the first LargeSize bytes of b.
func (l *Large) Encode(b []byte) {
	_ = b[LargeSize-1]
	binary.LittleEndian.PutUint16(b[0:], l.Lease)
	binary.LittleEndian.PutUint16(b[2:], l.Seq)
	binary.LittleEndian.PutUint32(b[4:], l.Length)
	binary.LittleEndian.PutUint64(b[8:], l.Ring)
}

// Decode reads a Large frame's payload.
func (l *Large) Decode(b []byte) error {
	if len(b) != LargeSize {
		return ErrPayload
	}
	l.Lease = binary.LittleEndian.Uint16(b[0:])
	l.Seq = binary.LittleEndian.Uint16(b[2:])
	l.Length = binary.LittleEndian.Uint32(b[4:])
	l.Ring = binary.LittleEndian.Uint64(b[8:])
	return nil
}

// Lease grants the receiver of the frame a landing ring for one stream.
type Lease struct {
	Index  uint16 // at most MaxLease
	Chunk  uint32 // the most bytes in one write
	Size   uint64 // bytes in the ring
	Remote        // the ring
}

// Remote says where memory lies that the receiver of a frame may write to: in a region that the
// sender has registered, or, between processes of one host, in a file that both map.
type Remote struct {
	Addr uint64 // of the first byte, as the writer must name it; in a file its offset
	Key  uint64 // of the region; of a file the number of its inode
	FD   uint32 // of a file: its descriptor in the process that sends the frame
}

// LeaseSize is the encoded size of a Lease.
const LeaseSize = 40

// Encode writes l to the first LeaseSize bytes of b.
func (l *Lease) Encode(b []byte) {
	_ = b[LeaseSize-1]
	binary.LittleEndian.PutUint32(b[0:], uint32(l.Index))
	binary.LittleEndian.PutUint32(b[4:], l.Chunk)
	binary.LittleEndian.PutUint64(b[8:], l.Size)
	binary.LittleEndian.PutUint64(b[16:], l.Addr)
	binary.LittleEndian.PutUint64(b[24:], l.Key)
	binary.LittleEndian.PutUint64(b[32:], uint64(l.FD))
}

// Decode reads a Lease frame's payload.
func (l *Lease) Decode(b []byte) error {
	if len(b) != LeaseSize {
		return ErrPayload
	}
	l.Index = binary.LittleEndian.Uint16(b[0:])
	l.Chunk = binary.LittleEndian.Uint32(b[4:])
	l.Size = binary.LittleEndian.Uint64(b[8:])
	l.Addr = binary.LittleEndian.Uint64(b[16:])
	l.Key = binary.LittleEndian.Uint64(b[24:])
	l.FD = binary.LittleEndian.Uint32(b[32:])
	if l.Index > MaxLease || l.Chunk == 0 || uint64(l.Chunk) > l.Size || l.Size > MaxRing {
		return ErrPayload
	}
	return nil
}

// MaxLease is the highest lease index: completion data has 15 bits for it.
const MaxLease = 1<<15 - 1

// MaxRing is the largest landing ring, in bytes.
const MaxRing = 1 << 30

// Credit is one stream's entry in a Credit frame.
type Credit struct {
	Stream uint32
	Window uint64 // as Header.Window
	Ring   uint64 // as Header.Ring
}

// CreditSize is the encoded size of a Credit.
const CreditSize = 24

// Encode writes c to the first CreditSize bytes of b.
func (c *Credit) Encode(b []byte) {
	_ = b[CreditSize-1]
	binary.LittleEndian.PutUint32(b[0:], c.Stream)
	binary.LittleEndian.PutUint32(b[4:], 0)
	binary.LittleEndian.PutUint64(b[8:], c.Window)
	binary.LittleEndian.PutUint64(b[16:], c.Ring)
}

// DecodeCredits calls fn for each entry of a Credit frame's payload.
func DecodeCredits(b []byte, fn func(Credit)) error {
	if len(b)%CreditSize != 0 {
		return ErrPayload
	}
	for ; len(b) > 0; b = b[CreditSize:] {
		fn(Credit{
			Stream: binary.LittleEndian.Uint32(b[0:]),
			Window: binary.LittleEndian.Uint64(b[8:]),
			Ring:   binary.LittleEndian.Uint64(b[16:]),
		})
	}
	return nil
}

// Open is the payload of an Open frame.
type Open struct {
	Listener uint32 // number that the listener gave itself in its Hello
}

// OpenSize is the encoded size of an Open.
const OpenSize = 4

// Encode writes o to the first OpenSize bytes of b.
func (o *Open) Encode(b []byte) { binary.LittleEndian.PutUint32(b, o.Listener) }

// Decode reads an Open frame's payload.
func (o *Open) Decode(b []byte) error {
	if len(b) != OpenSize {
		return ErrPayload
	}
	o.Listener = binary.LittleEndian.Uint32(b)
	return nil
}

// Accept is the payload of an Accept frame.
type Accept struct {
	Port uint16 // of the dialling side, in the stream's addresses; not 0
}

// AcceptSize is the encoded size of an Accept.
const AcceptSize = 2

// Encode writes a to the first AcceptSize bytes of b.
func (a *Accept) Encode(b []byte) { binary.LittleEndian.PutUint16(b, a.Port) }

// Decode reads an Accept frame's payload.
func (a *Accept) Decode(b []byte) error {
	if len(b) != AcceptSize {
		return ErrPayload
	}
	if a.Port = binary.LittleEndian.Uint16(b); a.Port == 0 {
		return ErrPayload
	}
	return nil
}

// ResetCode says why a stream was reset.
type ResetCode uint32

// The reset codes. A receiver treats one that it does not know as ResetClosed.
const (
	ResetClosed   ResetCode = iota + 1 // the other side closed and takes no more bytes
	ResetRefused                       // no such listener, or its backlog is full
	ResetMemory                        // the memory budget has no room for another stream's window
	ResetAbort                         // SetLinger(0), or a time-out of the sender
	ResetContents                      // path check: other bytes have arrived than were sent
	ResetUnmapped                      // path check: the sender cannot map what it was to write to
)

// ResetSize is the encoded size of a ResetCode.
const ResetSize = 4

// Encode writes c to the first ResetSize bytes of b.
func (c ResetCode) Encode(b []byte) { binary.LittleEndian.PutUint32(b, uint32(c)) }

// DecodeReset reads a Reset frame's payload.
func DecodeReset(b []byte) (ResetCode, error) {
	if len(b) != ResetSize {
		return 0, ErrPayload
	}
	return ResetCode(binary.LittleEndian.Uint32(b)), nil
}

// Immediate is the 32 bits of completion data that an RDMA write carries: 15 bits
// of lease index, one bit that says that the write continues the one before it, one
// bit that is 0, and 15 bits of sequence number. They carry no proof of their own, so they
// never bring a length or a position; see Proven.
type Immediate uint32

// MakeImmediate packs an Immediate. lease is at most MaxLease. The lower 15 bits of seq
// are used.
func MakeImmediate(lease, seq uint16, continues bool) Immediate {
	i := Immediate(lease)<<17 | Immediate(seq&maxSeq)
	if continues {
		i |= 1 << 16
	}
	return i
}

const maxSeq = 1<<15 - 1

// Proven returns completion data of 64 bits that shows who wrote: proof is the
// Header.Proof of frames to the same peer.
func (i Immediate) Proven(proof uint64) uint64 { return uint64(i) | proof>>32<<32 }

// Proven reports whether completion data of 64 bits carries the proof: that is, whether
// its upper half is that of proof, the Header.Proof of the writer's frames.
func Proven(data, proof uint64) bool { return (data^proof)>>32 == 0 }

// Lease returns the index of the lease that was written to.
func (i Immediate) Lease() uint16 { return uint16(i >> 17) }

// Seq returns the number of the write within the lease, modulo 2^15.
func (i Immediate) Seq() uint16 { return uint16(i) & maxSeq }

// Continues reports whether the write is as long as the write before it and starts,
// in the stream and in the ring, where that one ended. No Large frame announces such
// a write.
func (i Immediate) Continues() bool { return i&(1<<16) != 0 }
