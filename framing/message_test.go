package framing

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPreamble(t *testing.T) {
	for _, want := range []Preamble{{Version: 1}, {Version: 200, TLS: true}} {
		b := want.Append(nil)
		require.Len(t, b, PreambleSize)
		var got Preamble
		require.NoError(t, got.Decode(b))
		assert.Equal(t, want, got)
	}
	assert.Equal(t, "RDMN\x01\x01\x00\x00", string((&Preamble{Version: 1, TLS: true}).Append(nil)))
	var p Preamble
	require.NoError(t, p.Decode([]byte("RDMN\x07\xfe\xff\xff")), "unknown flags are for later versions")
	assert.Equal(t, Preamble{Version: 7}, p)
	assert.ErrorIs(t, p.Decode([]byte("GET / HT")), ErrMagic)
	assert.ErrorIs(t, p.Decode([]byte("RDMN\x01\x00\x00")), ErrTruncated)
	assert.ErrorIs(t, p.Decode([]byte("RDMN\x01\x00\x00\x00\x00")), ErrTruncated)
}

type message struct {
	kind Kind
	body Body
}

// sampleMessages has a message of each kind.
func sampleMessages() []message {
	hello, attach := sampleHello(), sampleAttach()
	return []message{
		{KindHello, &hello}, {KindSelect, &attach}, {KindAttach, &attach}, {KindReady, nil}, {KindConfirm, nil},
		{KindReject, &Reject{Code: RejectNoProvider, Text: "text"}}, {KindDecline, &Decline{Text: "text"}},
		{KindJoin, &Join{Peer: 1, Proof: [32]byte{2}}},
	}
}

func TestMessageRoundTrip(t *testing.T) {
	for _, m := range sampleMessages() {
		b, err := AppendMessage([]byte("before"), m.kind, m.body)
		require.NoError(t, err)
		require.Equal(t, "before", string(b[:6]))
		n, err := DecodeLength(b[6:10])
		require.NoError(t, err)
		require.Len(t, b[10:], n)
		got, rest, err := SplitMessage(b[10:])
		require.NoError(t, err)
		assert.Equal(t, m.kind, got)
		if m.body == nil {
			assert.NoError(t, DecodeEmpty(rest))
		} else {
			assert.Equal(t, encoded(t, m.body), rest)
		}
	}
}

func TestMessageErrors(t *testing.T) {
	for length, want := range map[string]error{
		"": ErrTruncated, "\x01\x00\x00": ErrTruncated, "\x00\x00\x00\x00": ErrField, "\x01\x00\x01\x00": ErrTooLong,
		"\xff\xff\xff\xff": ErrTooLong, "\x00\x00\x01\x00": nil, "\x01\x00\x00\x00": nil,
	} {
		_, err := DecodeLength([]byte(length))
		assert.ErrorIs(t, err, want, "%q", length)
	}
	for message, want := range map[string]error{"": ErrTruncated, "\x00": ErrField, string(rune(kindEnd)): ErrField, "\x80": ErrField, "\x07": nil} {
		_, _, err := SplitMessage([]byte(message))
		assert.ErrorIs(t, err, want, "%q", message)
	}
	assert.NoError(t, DecodeEmpty(appendTLV(nil, 5, 1)))
	assert.ErrorIs(t, DecodeEmpty(appendTLV(nil, 5|critical, 1)), ErrCritical)
	assert.ErrorIs(t, DecodeEmpty([]byte{1}), ErrTruncated)

	var h Hello // each offer is within its limits, but all of them together are not
	name := strings.Repeat("x", MaxName)
	for range MaxOffers {
		h.Offers = append(h.Offers, Offer{Provider: name, Fabric: name, Domain: name, Library: name})
	}
	b, err := AppendMessage([]byte("before"), KindHello, &h)
	assert.ErrorIs(t, err, ErrTooLong)
	assert.Equal(t, "before", string(b))
}

func TestKindString(t *testing.T) {
	for k := Kind(1); k < kindEnd; k++ {
		assert.NotEmpty(t, k.String())
	}
	assert.Equal(t, "select", KindSelect.String())
	assert.Equal(t, "kind(0)", Kind(0).String())
	assert.Equal(t, "kind(99)", Kind(99).String())
}

func TestHeartbeat(t *testing.T) {
	for _, sent := range []uint32{0, 1, 1<<32 - 1} {
		b := AppendHeartbeat([]byte("x"), sent)
		require.Len(t, b, 1+HeartbeatSize)
		got, err := DecodeHeartbeat(b[1:])
		require.NoError(t, err)
		assert.Equal(t, sent, got)
	}
	for _, b := range []string{"", "\x01", "\x01123", "\x0112345", "\x021234"} {
		_, err := DecodeHeartbeat([]byte(b))
		assert.ErrorIs(t, err, ErrTruncated, "%q", b)
	}
	assert.Equal(t, []byte{1, 4, 3, 2, 1}, AppendHeartbeat(nil, 0x01020304))
}

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
