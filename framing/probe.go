package framing

import (
	"bytes"
	"encoding/binary"
)

// Probe grants the receiver of the frame ProbeLength bytes of memory for one write, or
// MappedProbeLength, and says what the sender is going to write in turn. The frame's Pos is the seed of the
// sender's write.
type Probe struct {
	Index  uint16 // as in Lease, from MaxLease down
	Seq    uint16 // what the write's completion data names
	Writes uint32 // bytes that the sender writes, at most as many as it grants; 0: it cannot write
	Remote        // the memory
}

// ProbeLength is how much memory a Probe grants, in bytes, and MappedProbeLength how much of it if
// it lies in a file.
const (
	ProbeLength       = 64 << 10
	MappedProbeLength = 4 << 10
)

// ProbeSize is the encoded size of a Probe.
const ProbeSize = 8 + remoteSize

// Encode writes p to the first ProbeSize bytes of b.
func (p *Probe) Encode(b []byte) {
	_ = b[ProbeSize-1]
	binary.LittleEndian.PutUint16(b[0:], p.Index)
	binary.LittleEndian.PutUint16(b[2:], p.Seq)
	binary.LittleEndian.PutUint32(b[4:], p.Writes)
	p.encode(b[8:])
}

// Decode reads a Probe frame's payload.
func (p *Probe) Decode(b []byte) error {
	if len(b) != ProbeSize {
		return ErrPayload
	}
	p.Index = binary.LittleEndian.Uint16(b[0:])
	p.Seq = binary.LittleEndian.Uint16(b[2:])
	p.Writes = binary.LittleEndian.Uint32(b[4:])
	p.decode(b[8:])
	if p.Index > MaxLease || p.Writes > ProbeLength {
		return ErrPayload
	}
	return nil
}

// ProbeResult is the payload of a Probed frame. It tells the receiver of the frame what
// has become of what it sent and wrote.
type ProbeResult uint32

// The results. A receiver treats one that it does not know as ProbeWrong.
const (
	ProbeRight    ProbeResult = iota + 1
	ProbeWrong                // what arrived differs from what was sent
	ProbeUnsure               // the same, but a peer that was given up may have written there
	ProbeUnmapped             // the sender could not map what it was to write to
)

// ProbedSize is the encoded size of a ProbeResult.
const ProbedSize = 4

// Encode writes r to the first ProbedSize bytes of b.
func (r ProbeResult) Encode(b []byte) { binary.LittleEndian.PutUint32(b, uint32(r)) }

// DecodeProbed reads a Probed frame's payload.
func DecodeProbed(b []byte) (ProbeResult, error) {
	if len(b) != ProbedSize {
		return 0, ErrPayload
	}
	return ProbeResult(binary.LittleEndian.Uint32(b)), nil
}

// FillPattern fills b with the pattern of a seed, which is what path checks move: the
// outputs of SplitMix64, as SPEC.md section 5.1 defines them.
func FillPattern(b []byte, seed uint64) {
	var word [8]byte
	for i := 0; i < len(b); i += len(word) {
		binary.LittleEndian.PutUint64(word[:], mix(&seed))
		copy(b[i:], word[:])
	}
}

// HasPattern reports whether b is the pattern of a seed.
func HasPattern(b []byte, seed uint64) bool {
	var word [8]byte
	for len(b) >= len(word) {
		if binary.LittleEndian.Uint64(b) != mix(&seed) {
			return false
		}
		b = b[len(word):]
	}
	binary.LittleEndian.PutUint64(word[:], mix(&seed))
	return bytes.HasPrefix(word[:], b)
}

// mix is one step of SplitMix64.
func mix(state *uint64) uint64 {
	*state += 0x9e3779b97f4a7c15
	z := *state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
