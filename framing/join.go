package framing

import "encoding/binary"

// Join names a pair that the two processes form already, by what the receiver's side of it calls
// the sender. The dialling side asks with it for a further listener of that pair, and the
// listening side grants that.
type Join struct {
	Peer  uint32   // what the sender's frames carry as Header.Peer
	Proof [32]byte // JoinProof, with the token that those frames prove, too
}

func (j *Join) fields() fields {
	return fields{
		{1, "peer", required, number(&j.Peer)},
		{2, "proof", required, octets(j.Proof[:])},
	}
}

// JoinLabel and JoinKeySize are for the keying material that both sides export from TLS for
// JoinProof, without a context (RFC 5705).
const (
	JoinLabel   = "EXPERIMENTAL fabricnet join"
	JoinKeySize = 32
)

// JoinProof returns the proof of a Join for that listener: that the sender knows the token that
// the receiver has sent in its Attach when the pair was formed. exported ties it to the
// connection; it is empty without TLS. JoinProof does not give the token away.
func JoinProof(token [16]byte, listener uint32, exported []byte) (proof [32]byte) {
	return Derive(token, "fabricnet join", binary.LittleEndian.AppendUint32(nil, listener), exported)
}
