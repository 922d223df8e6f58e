package framing

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
)

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
