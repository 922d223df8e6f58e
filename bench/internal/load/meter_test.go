package load

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestJain(t *testing.T) {
	assert.InDelta(t, 1, jain(nil), 0)
	assert.InDelta(t, 1, jain([]float64{0, 0}), 0)
	assert.InDelta(t, 1, jain([]float64{3, 3, 3}), 1e-9)
	assert.InDelta(t, 0.25, jain([]float64{0, 9, 0, 0}), 1e-9)
	assert.InDelta(t, 0.9, jain([]float64{1, 2}), 1e-9)
}

// growing reports more registered memory each time it is asked.
type growing struct {
	carrier
	bytes int64
}

func (g *growing) memory() memory {
	g.bytes += 100
	return memory{registered: g.bytes, used: 2 * g.bytes, mapped: 3 * g.bytes}
}

func TestMeterCountsMemoryFromTheFirstConnOn(t *testing.T) {
	m := &meter{transport: new(growing)}
	u, err := m.read()
	require.NoError(t, err)
	assert.Zero(t, u.Registered, "no conn yet")
	m.firstConn()
	m.firstConn()
	earlier, err := m.read()
	require.NoError(t, err)
	assert.EqualValues(t, 100, earlier.Registered)
	assert.Positive(t, earlier.CPU)

	later, err := m.read()
	require.NoError(t, err)
	used := later.Since(earlier)
	assert.EqualValues(t, 200, used.Registered)
	assert.Positive(t, used.Mallocs)
	assert.LessOrEqual(t, used.CPU, later.CPU)
}
