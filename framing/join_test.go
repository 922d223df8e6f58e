package framing

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestJoinRoundTrip(t *testing.T) {
	want := Join{Peer: 7, Proof: JoinProof([16]byte{1}, 2, nil)}
	b := encoded(t, &want)
	got := Join{Peer: 9, Proof: [32]byte{9}}
	require.NoError(t, DecodeBody(b, &got))
	assert.Equal(t, want, got)

	assert.ErrorIs(t, DecodeBody(nil, &got), ErrMissing)
	assert.ErrorIs(t, DecodeBody(appendTLV(nil, typeOf(new(Join), "peer"), 1, 0, 0, 0), &got), ErrMissing)
	assert.ErrorIs(t, DecodeBody(appendTLV(b[:len(b):len(b)], typeOf(new(Join), "peer"), 1, 2, 3, 4), &got), ErrRepeated)
	assert.ErrorIs(t, DecodeBody(b[:len(b)-1], &got), ErrTruncated)
	assert.ErrorIs(t, DecodeBody(appendTLV(appendTLV(nil, typeOf(new(Join), "peer"), 1, 0, 0, 0), typeOf(new(Join), "proof"), make([]byte, 31)...), &got), ErrField)
}

// TestJoinProof pins the value, and shows on what it depends.
func TestJoinProof(t *testing.T) {
	proof := func(token byte, listener uint32, exported string) string {
		p := JoinProof([16]byte{token}, listener, []byte(exported))
		return hex.EncodeToString(p[:])
	}
	p := proof(0, 1, "")
	assert.Equal(t, "6c1cba713af03813cf15982717df9c7e7d9e1dd75a46fbbcf927cdda7ab1d689", p)
	assert.Equal(t, p, proof(0, 1, ""))
	for name, other := range map[string]string{
		"the token": proof(1, 1, ""), "the listener": proof(0, 2, ""), "the connection": proof(0, 1, "x"),
	} {
		assert.NotEqual(t, p, other, name)
	}
}
