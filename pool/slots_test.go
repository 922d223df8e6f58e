package pool

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSlotsTrim(t *testing.T) {
	b := NewBudget(DefaultLimit)
	s := NewSlots(b, nil, 4*Align)
	assert.Empty(t, s.Trim())
	for range 2 {
		require.NoError(t, s.Grow(3))
		require.NoError(t, s.Grow(2))
		slot, ok := s.Get()
		require.True(t, ok)
		assert.Empty(t, s.Trim(), "somebody has one")
		assert.Equal(t, 5, s.Len())
		s.Put(slot)
		slabs := s.Trim()
		assert.Len(t, slabs, 2)
		assert.Zero(t, s.Len())
		_, ok = s.Get()
		assert.False(t, ok)
		left, err := CloseSlabs(slabs)
		assert.NoError(t, err)
		assert.Empty(t, left)
		assert.Zero(t, b.Stats().Used)
	}
}
