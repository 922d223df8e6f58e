package pool

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestGetNextGoesRound(t *testing.T) {
	s := NewSlots(NewBudget(DefaultLimit), nil, 4*Align)
	_, ok := s.GetNext()
	assert.False(t, ok)
	require.NoError(t, s.Grow(3))
	require.NoError(t, s.Grow(2))
	defer s.Close()
	var order []uint32
	for range 5 {
		slot, ok := s.GetNext()
		require.True(t, ok)
		order = append(order, slot)
	}
	assert.Equal(t, []uint32{0, 1, 2, 3, 4}, order)
	_, ok = s.GetNext()
	assert.False(t, ok)
	for _, slot := range []uint32{1, 4, 3} {
		s.Put(slot)
	}
	order = nil
	for range 3 {
		slot, ok := s.GetNext()
		require.True(t, ok)
		order = append(order, slot)
	}
	assert.Equal(t, []uint32{1, 3, 4}, order)
	assert.Zero(t, s.Free())
	assert.Panics(t, func() { s.Put(0); s.Put(0) })

	assert.True(t, s.Adjoin(0, 1))
	assert.False(t, s.Adjoin(1, 0))
	assert.False(t, s.Adjoin(2, 3), "in another slab")
	assert.True(t, s.Adjoin(3, 4))
	span := s.Span(0, 3)
	assert.Len(t, span, 12*Align)
	span[5*Align] = 7
	assert.EqualValues(t, 7, s.Bytes(1)[Align])
}

func TestSlotsTrim(t *testing.T) {
	b := NewBudget(DefaultLimit)
	s := NewSlots(b, nil, 4*Align)
	assert.Empty(t, s.Trim())
	for _, get := range []func() (uint32, bool){s.Get, s.GetNext} {
		require.NoError(t, s.Grow(3))
		require.NoError(t, s.Grow(2))
		slot, ok := get()
		require.True(t, ok)
		assert.Empty(t, s.Trim(), "somebody has one")
		assert.Equal(t, 5, s.Len())
		s.Put(slot)
		slabs := s.Trim()
		assert.Len(t, slabs, 2)
		assert.Zero(t, s.Len())
		_, ok = get()
		assert.False(t, ok)
		left, err := CloseSlabs(slabs)
		assert.NoError(t, err)
		assert.Empty(t, left)
		assert.Zero(t, b.Stats().Used)
	}
}
