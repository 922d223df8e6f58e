package framing

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func sampleHeader() Header {
	return Header{
		Type: TypeData, Flags: FlagWant, Length: 3, Peer: 0x04030201, Proof: 0x1817161514131211,
		Stream: 0x24232221, Slots: 0x34333231, Pos: 0x4847464544434241, Window: 0x5857565554535251, Ring: 0x6867666564636261,
	}
}

// TestHeaderLayout pins the bytes, since the two ends of a connection may run different builds.
func TestHeaderLayout(t *testing.T) {
	h := sampleHeader()
	b := make([]byte, HeaderSize)
	h.Encode(b)
	assert.Equal(t, "\x03\x04\x03\x00\x01\x02\x03\x04\x11\x12\x13\x14\x15\x16\x17\x18"+
		"\x21\x22\x23\x24\x31\x32\x33\x34ABCDEFGHQRSTUVWXabcdefgh", string(b))
}

func TestHeaderRoundTrip(t *testing.T) {
	for typ := Type(1); typ < typeEnd; typ++ {
		h := sampleHeader()
		h.Type = typ
		frame := append(make([]byte, HeaderSize), "abc"...)
		h.Encode(frame)
		var got Header
		payload, err := got.Decode(frame)
		require.NoError(t, err)
		assert.Equal(t, h, got)
		assert.Equal(t, "abc", string(payload))
	}
}

func TestHeaderErrors(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(frame []byte) []byte
		want   error
	}{
		{"empty", func([]byte) []byte { return nil }, ErrShort},
		{"one byte short", func(f []byte) []byte { return f[:HeaderSize-1] }, ErrShort},
		{"type 0", func(f []byte) []byte { f[0] = 0; return f }, ErrType},
		{"type beyond the last", func(f []byte) []byte { f[0] = byte(typeEnd); return f }, ErrType},
		{"unknown flag", func(f []byte) []byte { f[1] = byte(flagEnd); return f }, ErrType},
		{"payload cut off", func(f []byte) []byte { return f[:len(f)-1] }, ErrLength},
		{"payload too long", func(f []byte) []byte { return append(f, 0) }, ErrLength},
		{"longer than the length field can say", func(f []byte) []byte { return append(f, make([]byte, 1<<16)...) }, ErrLength},
	} {
		h := sampleHeader()
		frame := make([]byte, HeaderSize+3)
		h.Encode(frame)
		payload, err := new(Header).Decode(tt.change(frame))
		assert.ErrorIs(t, err, tt.want, tt.name)
		assert.Nil(t, payload, tt.name)
	}
}

func TestTypeString(t *testing.T) {
	assert.Equal(t, "finack", TypeFinAck.String())
	for typ := Type(1); typ < typeEnd; typ++ {
		assert.NotEmpty(t, typ.String())
	}
	assert.Equal(t, "type(0)", Type(0).String())
	assert.Equal(t, "type(200)", Type(200).String())
}

func BenchmarkHeaderEncode(b *testing.B) {
	h := sampleHeader()
	frame := make([]byte, HeaderSize)
	b.ReportAllocs()
	for b.Loop() {
		h.Encode(frame)
	}
}

func BenchmarkHeaderDecode(b *testing.B) {
	h := sampleHeader()
	frame := make([]byte, HeaderSize+3)
	h.Encode(frame)
	var got Header
	b.ReportAllocs()
	for b.Loop() {
		if _, err := got.Decode(frame); err != nil {
			b.Fatal(err)
		}
	}
}

// TestNoAllocations: encoding and decoding a frame allocates no memory.
func TestNoAllocations(t *testing.T) {
	h := sampleHeader()
	frame := make([]byte, HeaderSize+3)
	large := Large{Length: 5}
	buf := make([]byte, CreditSize)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		h.Encode(frame)
		_, _ = h.Decode(frame)
		large.Encode(buf)
		_ = large.Decode(buf[:LargeSize])
		(&Credit{Stream: 1}).Encode(buf)
		_ = DecodeCredits(buf, func(Credit) {})
	}))
}
