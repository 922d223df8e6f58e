package framing

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestProbe(t *testing.T) {
	b := make([]byte, ProbeSize)
	want := Probe{Index: MaxLease, Seq: 1<<16 - 2, Writes: ProbeLength, Remote: Remote{Addr: 1<<63 + 2, Key: 3, FD: 4}}
	want.Encode(b)
	var got Probe
	require.NoError(t, got.Decode(b))
	assert.Equal(t, want, got)
	for _, bad := range []Probe{{Index: MaxLease + 1}, {Writes: ProbeLength + 1}} {
		bad.Encode(b)
		assert.ErrorIs(t, got.Decode(b), ErrPayload)
	}
	assert.ErrorIs(t, got.Decode(b[1:]), ErrPayload)
	ProbeWrong.Encode(b)
	r, err := DecodeProbed(b[:ProbedSize])
	require.NoError(t, err)
	assert.Equal(t, ProbeWrong, r)
	_, err = DecodeProbed(b)
	assert.ErrorIs(t, err, ErrPayload)
}

// The numbers are what SplitMix64's reference implementation yields from state 1234567.
func TestPattern(t *testing.T) {
	b := make([]byte, 44)
	FillPattern(b, 1234567)
	for i, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821} {
		assert.Equal(t, want, binary.LittleEndian.Uint64(b[8*i:]), i)
	}
	for n := range len(b) + 1 {
		assert.True(t, HasPattern(b[:n], 1234567), n)
		assert.Equal(t, n == 0, HasPattern(b[:n], 1234568), n)
	}
	for i := range b {
		b[i] ^= 1
		assert.False(t, HasPattern(b, 1234567), i)
		b[i] ^= 1
	}
}
