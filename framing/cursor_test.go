package framing

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCursor(t *testing.T) {
	var c Cursor
	assert.EqualValues(t, 10, c.Advance(10))
	assert.Zero(t, c.Advance(10), "repeated")
	assert.Zero(t, c.Advance(3), "overtaken")
	assert.EqualValues(t, 1, c.Advance(11))
	assert.EqualValues(t, 11, c)
	assert.EqualValues(t, 9, c.Room(20))
	assert.Zero(t, c.Room(11))
	assert.Zero(t, c.Room(2), "no underflow")
	assert.Equal(t, uint64(math.MaxUint64-11), c.Advance(math.MaxUint64))
}

func TestSlotCursor(t *testing.T) {
	tests := []struct {
		known, to uint32
		added     uint32
	}{
		{0, 64, 64}, {64, 64, 0}, {64, 63, 0},
		{math.MaxUint32, 0, 1}, {math.MaxUint32 - 3, 4, 8},
		{0, math.MaxUint32, 0}, {4, math.MaxUint32 - 3, 0},
		{0, 1<<31 - 1, 1<<31 - 1}, {0, 1 << 31, 0},
	}
	for _, tt := range tests {
		c := SlotCursor(tt.known)
		assert.Equal(t, tt.added, c.Advance(tt.to), "%d to %d", tt.known, tt.to)
		assert.Equal(t, SlotCursor(tt.known+tt.added), c)
	}
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

// TestCursorsInAnyOrder: in whatever order frames arrive, a receiver ends up at the
// position in the frame that was sent last, and counts nothing twice.
func TestCursorsInAnyOrder(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		start := r.Uint32()
		var bytes []uint64
		var slots []uint32
		pos, slot := uint64(0), start
		for range 40 {
			pos += r.Uint64N(1 << 30)
			slot += r.Uint32N(1000)
			bytes, slots = append(bytes, pos), append(slots, slot)
		}
		var c Cursor
		s := SlotCursor(start)
		var gotBytes uint64
		var gotSlots uint32
		for _, i := range r.Perm(len(bytes)) {
			gotBytes += c.Advance(bytes[i])
			gotSlots += s.Advance(slots[i])
		}
		assert.Equal(t, pos, gotBytes, "seed %d", seed)
		assert.Equal(t, slot-start, gotSlots, "seed %d", seed)
	}
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
