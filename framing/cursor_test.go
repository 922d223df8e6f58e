package framing

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

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
	tests := []struct{ pos, size, n, offset, span uint64 }{
		{0, 100, 30, 0, 30}, {0, 100, 300, 0, 100}, {90, 100, 30, 90, 10}, {100, 100, 30, 0, 30},
		{199, 100, 1, 99, 1}, {math.MaxUint64, 1 << 20, 5, 1<<20 - 1, 1}, {7, 1, 9, 0, 1}, {5, 10, 0, 5, 0},
	}
	for _, tt := range tests {
		assert.Equal(t, tt.offset, RingOffset(tt.pos, tt.size), "%+v", tt)
		assert.Equal(t, tt.span, RingSpan(tt.pos, tt.size, tt.n), "%+v", tt)
	}
}
