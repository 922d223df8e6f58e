package framing

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type payload interface {
	Encode(b []byte)
	Decode(b []byte) error
}

func TestPayloadRoundTrips(t *testing.T) {
	for _, tt := range []struct {
		want, got payload
		size      int
		bytes     string // what it looks like, unless ""
	}{
		{
			&Large{Lease: 0x0201, Seq: 0x0403, Length: 0x08070605, Ring: 0x100f0e0d0c0b0a09}, new(Large), LargeSize,
			"\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10",
		},
		{&Lease{Index: MaxLease, Chunk: 1 << 20, Size: MaxRing, Remote: Remote{Addr: 1<<64 - 1, Key: 7, FD: 0x04030201}}, new(Lease), LeaseSize, ""},
		{&Open{Listener: 0x04030201}, new(Open), OpenSize, "\x01\x02\x03\x04"},
		{&Accept{Port: 0x0201}, new(Accept), AcceptSize, "\x01\x02"},
	} {
		b := make([]byte, tt.size)
		tt.want.Encode(b)
		if tt.bytes != "" {
			assert.Equal(t, tt.bytes, string(b))
		}
		require.NoError(t, tt.got.Decode(b))
		assert.Equal(t, tt.want, tt.got)
		assert.ErrorIs(t, tt.got.Decode(b[:tt.size-1]), ErrPayload)
	}
	assert.ErrorIs(t, new(Accept).Decode(make([]byte, AcceptSize)), ErrPayload, "no port")

	b := make([]byte, ResetSize)
	ResetAbort.Encode(b)
	code, err := DecodeReset(b)
	require.NoError(t, err)
	assert.Equal(t, ResetAbort, code)
}

func TestCredits(t *testing.T) {
	want := []Credit{{Stream: 1, Window: 2, Ring: 3}, {Stream: 1<<32 - 1, Window: 1<<64 - 1, Ring: 1 << 40}}
	b := make([]byte, len(want)*CreditSize)
	for i := range want {
		want[i].Encode(b[i*CreditSize:])
	}
	var got []Credit
	require.NoError(t, DecodeCredits(b, func(c Credit) { got = append(got, c) }))
	assert.Equal(t, want, got)

	never := func(Credit) { t.Error("called") }
	assert.NoError(t, DecodeCredits(nil, never), "a Credit frame may grant slots only")
	assert.ErrorIs(t, DecodeCredits(b[:CreditSize+1], never), ErrPayload, "nothing of it is taken")
}

func TestPayloadSizes(t *testing.T) {
	for n := range 64 {
		b := make([]byte, n)
		check := func(name string, err error, size int) {
			if n == size {
				assert.NoError(t, err, "%s of %d bytes", name, n)
			} else {
				assert.ErrorIs(t, err, ErrPayload, "%s of %d bytes", name, n)
			}
		}
		check("large", new(Large).Decode(b), LargeSize)
		check("open", new(Open).Decode(b), OpenSize)
		check("accept", new(Accept).Decode(bytes.Repeat([]byte{1}, n)), AcceptSize)
		_, err := DecodeReset(b)
		check("reset", err, ResetSize)
		assert.ErrorIs(t, new(Lease).Decode(b), ErrPayload, "a lease of zeros is none")
	}
}

func TestLeaseErrors(t *testing.T) {
	for _, tt := range []struct {
		name  string
		lease Lease
		want  error
	}{
		{"smallest", Lease{Chunk: 1, Size: 1}, nil}, {"largest", Lease{Index: MaxLease, Chunk: MaxRing, Size: MaxRing}, nil},
		{"no chunk", Lease{Size: 1}, ErrPayload}, {"no ring", Lease{Chunk: 1}, ErrPayload},
		{"chunk above ring", Lease{Chunk: 2, Size: 1}, ErrPayload},
		{"ring too large", Lease{Chunk: 1, Size: MaxRing + 1}, ErrPayload}, {"index", Lease{Index: MaxLease + 1, Chunk: 1, Size: 1}, ErrPayload},
	} {
		b := make([]byte, LeaseSize)
		tt.lease.Encode(b)
		assert.ErrorIs(t, new(Lease).Decode(b), tt.want, tt.name)
	}
}

func TestImmediate(t *testing.T) {
	for _, lease := range []uint16{0, 1, MaxLease} {
		for _, seq := range []uint16{0, 1, 1<<15 - 1} {
			for _, continues := range []bool{false, true} {
				i := MakeImmediate(lease, seq, continues)
				assert.Equal(t, lease, i.Lease())
				assert.Equal(t, seq, i.Seq())
				assert.Equal(t, continues, i.Continues())
				assert.Equal(t, i, MakeImmediate(lease, seq|1<<15, continues))
			}
		}
	}
	assert.Equal(t, Immediate(0x0007_0002), MakeImmediate(3, 2, true))
	assert.Equal(t, Immediate(0x0006_0002), MakeImmediate(3, 2, false))
}

func TestModuloOrder(t *testing.T) {
	assert.EqualValues(t, 1, SlotsAfter(0, math.MaxUint32))
	assert.EqualValues(t, -1, SlotsAfter(math.MaxUint32, 0))
	assert.EqualValues(t, 0, SlotsAfter(5, 5))
	assert.EqualValues(t, 1, SeqAfter(0, math.MaxUint16))
	assert.EqualValues(t, -2, SeqAfter(math.MaxUint16, 1))
	assert.EqualValues(t, MaxWrites, SeqAfter(MaxWrites-1, math.MaxUint16))
	assert.EqualValues(t, 2, SeqAfter(1, 1<<15-1))
	assert.EqualValues(t, 0, SeqAfter(1<<15, 0))
}

func TestRing(t *testing.T) {
	for _, tt := range []struct{ pos, size, n, offset, span uint64 }{
		{0, 100, 30, 0, 30}, {0, 100, 300, 0, 100}, {90, 100, 30, 90, 10}, {100, 100, 30, 0, 30},
		{199, 100, 1, 99, 1}, {math.MaxUint64, 1 << 20, 5, 1<<20 - 1, 1}, {7, 1, 9, 0, 1}, {5, 10, 0, 5, 0},
	} {
		assert.Equal(t, tt.offset, RingOffset(tt.pos, tt.size), "%+v", tt)
		assert.Equal(t, tt.span, RingSpan(tt.pos, tt.size, tt.n), "%+v", tt)
	}
}

// The numbers are what SplitMix64's reference implementation yields from state 1234567.
func TestPattern(t *testing.T) {
	const seed = 1234567
	b := make([]byte, 44)
	FillPattern(b, seed, 0)
	for i, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821} {
		assert.Equal(t, want, binary.LittleEndian.Uint64(b[8*i:]), i)
	}
	for from := range len(b) {
		for to := from; to <= len(b); to++ {
			part := make([]byte, to-from)
			FillPattern(part, seed, uint64(from))
			assert.Equal(t, b[from:to], part)
			assert.True(t, HasPattern(part, seed, uint64(from)))
			assert.Equal(t, len(part) == 0, HasPattern(part, seed+1, uint64(from)))
		}
	}
	for i := range b {
		b[i] ^= 1
		assert.False(t, HasPattern(b, seed, 0), i)
		b[i] ^= 1
	}
}
